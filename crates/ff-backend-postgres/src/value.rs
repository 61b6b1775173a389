//! Parameters of statements that are put together while the program runs.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::BytesMut;
use postgres_types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Int(i32),
    Big(i64),
    Text(String),
    Bytes(Vec<u8>),
    Id(Uuid),
    /// Of the type `"char"`.
    Letter(i8),
}

/// Bytes that others hold, too.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bytes(pub(crate) Arc<[u8]>);

/// A name that others hold, too.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text<T>(pub(crate) T);

impl<T: AsRef<str> + Debug> ToSql for Text<T> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.0.as_ref().to_sql(ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        <&str as ToSql>::accepts(ty)
    }

    to_sql_checked!();
}

impl ToSql for Bytes {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.0.as_ref().to_sql(ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::BYTEA
    }

    to_sql_checked!();
}

impl ToSql for Value {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Int(value) => value.to_sql(ty, out),
            Self::Big(value) => value.to_sql(ty, out),
            Self::Text(value) => value.to_sql(ty, out),
            Self::Bytes(value) => value.to_sql(ty, out),
            Self::Id(value) => value.to_sql(ty, out),
            Self::Letter(value) => value.to_sql(ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT4 | Type::INT8 | Type::TEXT | Type::BYTEA | Type::UUID | Type::CHAR)
    }

    to_sql_checked!();
}

//! The layout of the file: made, brought up to date, or refused.

use ff_core::{EngineError, Result};
use rusqlite::{Connection, TransactionBehavior};

use crate::error::explain;

/// The layout this program writes. It covers the tables and the bytes of records, keys and index entries in them.
pub const SCHEMA_VERSION: i64 = 2;

/// The oldest program that can use a file of this layout.
pub const MIN_COMPATIBLE: i64 = 2;

/// The oldest layout that this program can read.
const OLDEST_READABLE: i64 = 2;

/// Marks a file as ours: `FFab` in its header.
const APPLICATION_ID: i64 = 0x4646_6162;

/// The steps from one layout to the next, each with the layout it leads to.
const MIGRATIONS: [(i64, &str); 1] = [(2, include_str!("../migrations/0001_initial.sql"))];

/// Makes the layout, or brings an older one up to date.
///
/// # Errors
/// `InvalidInput` for a file of another program, or one that only a newer or an older version can use.
pub(crate) fn prepare(db: &mut Connection) -> Result<()> {
    if at_one_moment(db)? == SCHEMA_VERSION {
        return Ok(());
    }
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(explain)?;
    // Another process may have been faster.
    let from = version(&tx)?;
    for (_, step) in MIGRATIONS.iter().filter(|(to, _)| *to > from) {
        tx.execute_batch(step).map_err(explain)?;
    }
    if from < SCHEMA_VERSION {
        let stamp = format!(
            "INSERT OR REPLACE INTO deployment (name, value)
             VALUES ('schema_version', {SCHEMA_VERSION}), ('min_compatible', {MIN_COMPATIBLE});
             PRAGMA application_id = {APPLICATION_ID};"
        );
        tx.execute_batch(&stamp).map_err(explain)?;
    }
    tx.commit().map_err(explain)
}

/// Refuses what is not ours or not for us, and changes nothing.
///
/// # Errors
/// `InvalidInput` for a file of another program, or one that only a newer or an older version can use.
pub(crate) fn check(db: &Connection) -> Result<()> {
    at_one_moment(db).map(drop)
}

/// As [`version`], while another process may be making the layout.
fn at_one_moment(db: &Connection) -> Result<i64> {
    version(&*db.unchecked_transaction().map_err(explain)?)
}

/// The layout of the file, 0 when it is new; refuses what is not ours or not for us.
fn version(db: &Connection) -> Result<i64> {
    let number = |sql: &str| -> Result<i64> { db.query_row(sql, [], |row| row.get(0)).map_err(explain) };
    let application = number("PRAGMA application_id")?;
    if application != APPLICATION_ID {
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        return if tables == 0 && application == 0 { Ok(0) } else { Err(foreign()) };
    }
    let version = number("SELECT value FROM deployment WHERE name = 'schema_version'")?;
    let min_compatible = number("SELECT value FROM deployment WHERE name = 'min_compatible'")?;
    if min_compatible > SCHEMA_VERSION {
        return Err(EngineError::invalid(format_args!(
            "the database has layout {version}, which needs a program that knows layout {min_compatible} or later; this one knows \
             {SCHEMA_VERSION}. Upgrade the program, or open another file"
        )));
    }
    if version < OLDEST_READABLE {
        return Err(EngineError::invalid(format_args!(
            "the database has layout {version}, which this program cannot read; it knows the layouts from {OLDEST_READABLE} to \
             {SCHEMA_VERSION}; nothing was changed. Use the program that made it, or open another file"
        )));
    }
    // A newer layout that we may use is left as it is.
    Ok(version.min(SCHEMA_VERSION))
}

fn foreign() -> EngineError {
    EngineError::invalid(
        "the file is a SQLite database of another application; nothing was changed. Give the path of a FlowFabric database, or of \
         a file that does not exist yet",
    )
}

/// The layout as SQL, as the migrations leave it.
///
/// # Errors
/// When the migrations do not run.
#[cfg(test)]
fn dump() -> Result<String> {
    let mut db = Connection::open_in_memory().map_err(explain)?;
    prepare(&mut db)?;
    let mut statement =
        db.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type DESC, name").map_err(explain)?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).map_err(explain)?;
    let mut out =
        format!("-- Layout {SCHEMA_VERSION} of the SQLite store, generated from the migrations; do not edit.\n");
    for sql in rows {
        out.push_str(&format!("\n{};\n", sql.map_err(explain)?));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Connection {
        Connection::open_in_memory().unwrap()
    }

    #[test]
    fn the_checked_in_layout_is_what_the_migrations_make() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.sql");
        let made = dump().unwrap();
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(stored, made, "run the tests once with UPDATE_SCHEMA=1 and look at the difference");
    }

    #[test]
    fn preparing_twice_changes_nothing() {
        let mut db = memory();
        prepare(&mut db).unwrap();
        prepare(&mut db).unwrap();
        assert_eq!(version(&db).unwrap(), SCHEMA_VERSION);
    }

    #[test]
    fn a_newer_layout_that_we_may_use_is_left_alone() {
        let mut db = memory();
        prepare(&mut db).unwrap();
        db.execute_batch("UPDATE deployment SET value = 99 WHERE name = 'schema_version'").unwrap();
        prepare(&mut db).unwrap();
        let kept: i64 =
            db.query_row("SELECT value FROM deployment WHERE name = 'schema_version'", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, 99);
    }

    #[test]
    fn a_layout_for_newer_programs_only_is_refused() {
        let mut db = memory();
        prepare(&mut db).unwrap();
        db.execute_batch("UPDATE deployment SET value = 99").unwrap();
        let error = prepare(&mut db).unwrap_err().to_string();
        assert!(error.contains("layout 99") && error.contains("Upgrade the program"), "{error}");
    }

    #[test]
    fn a_layout_from_before_is_refused_and_left_as_it_was() {
        let mut db = memory();
        prepare(&mut db).unwrap();
        db.execute_batch("UPDATE deployment SET value = 1 WHERE name IN ('schema_version', 'min_compatible')").unwrap();
        for refused in [prepare(&mut db), check(&db)] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("layout 1") && error.contains("the program that made it"), "{error}");
        }
        let kept: i64 =
            db.query_row("SELECT value FROM deployment WHERE name = 'schema_version'", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, 1);
    }

    #[test]
    fn a_program_of_the_layout_before_refuses_ours() {
        let mut db = memory();
        prepare(&mut db).unwrap();
        let needed: i64 =
            db.query_row("SELECT value FROM deployment WHERE name = 'min_compatible'", [], |row| row.get(0)).unwrap();
        assert_eq!(needed, SCHEMA_VERSION, "programs refuse what needs a later layout than theirs");
    }

    #[test]
    fn a_database_of_another_application_is_refused_and_left_as_it_was() {
        let mut db = memory();
        db.execute_batch("CREATE TABLE diary (entry TEXT)").unwrap();
        let error = prepare(&mut db).unwrap_err().to_string();
        assert!(error.contains("another application"), "{error}");
        let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(tables, 1);
    }
}

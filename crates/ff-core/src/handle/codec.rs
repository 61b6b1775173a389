//! The fields inside a handle, without header and seal.

use std::fmt;

use uuid::Uuid;

use super::{HandleDecodeError, HandleKind, HandlePayload};
use crate::ids::{
    AttemptId, AttemptIndex, ExecutionId, LaneId, LeaseEpoch, LeaseId, NameError, Namespace, WorkerId, WorkerInstanceId,
};

pub(super) fn short_len(bytes: &[u8]) -> [u8; 2] {
    u16::try_from(bytes.len()).expect("names have at most 256 bytes each").to_be_bytes()
}

pub(super) fn encode(payload: &HandlePayload) -> Vec<u8> {
    let mut body = Vec::with_capacity(160);
    body.extend(payload.execution_id.partition().index().to_be_bytes());
    body.extend(payload.execution_id.uuid().as_bytes());
    body.extend(payload.attempt_index.0.to_be_bytes());
    body.extend(payload.attempt_id.uuid().as_bytes());
    body.extend(payload.lease_id.uuid().as_bytes());
    body.extend(payload.lease_epoch.0.to_be_bytes());
    body.extend(payload.lease_ttl_ms.to_be_bytes());
    let names = [
        payload.lane_id.as_str(),
        payload.namespace.as_str(),
        payload.worker_id.as_str(),
        payload.worker_instance_id.as_str(),
    ];
    for name in names {
        body.extend(short_len(name.as_bytes()));
        body.extend(name.as_bytes());
    }
    body
}

pub(super) fn decode(body: &[u8], kind: HandleKind) -> Result<HandlePayload, HandleDecodeError> {
    let mut reader = Reader { rest: body };
    let payload = HandlePayload {
        execution_id: ExecutionId::new(
            u16::from_be_bytes(reader.array("partition")?),
            Uuid::from_bytes(reader.array("execution_id")?),
        ),
        attempt_index: AttemptIndex(u32::from_be_bytes(reader.array("attempt_index")?)),
        attempt_id: AttemptId::from_uuid(Uuid::from_bytes(reader.array("attempt_id")?)),
        lease_id: LeaseId::from_uuid(Uuid::from_bytes(reader.array("lease_id")?)),
        lease_epoch: LeaseEpoch(u64::from_be_bytes(reader.array("lease_epoch")?)),
        lease_ttl_ms: u64::from_be_bytes(reader.array("lease_ttl_ms")?),
        lane_id: reader.name("lane_id", |text| LaneId::new(text))?,
        namespace: reader.name("namespace", |text| Namespace::new(text))?,
        worker_id: reader.name("worker_id", |text| WorkerId::new(text))?,
        worker_instance_id: reader.name("worker_instance_id", |text| WorkerInstanceId::new(text))?,
        kind,
    };
    if reader.rest.is_empty() { Ok(payload) } else { Err(bad_field("body", "bytes after the last field")) }
}

fn bad_field(field: &'static str, detail: impl fmt::Display) -> HandleDecodeError {
    HandleDecodeError::BadField { field, detail: detail.to_string() }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], HandleDecodeError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| bad_field(field, "bytes are missing"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], HandleDecodeError> {
        self.take(field, N)?.try_into().map_err(|_| bad_field(field, "bytes are missing"))
    }

    fn name<T>(
        &mut self,
        field: &'static str,
        parse: impl FnOnce(&str) -> Result<T, NameError>,
    ) -> Result<T, HandleDecodeError> {
        let len = u16::from_be_bytes(self.array(field)?);
        let text = std::str::from_utf8(self.take(field, usize::from(len))?).map_err(|e| bad_field(field, e))?;
        parse(text).map_err(|e| bad_field(field, e))
    }
}

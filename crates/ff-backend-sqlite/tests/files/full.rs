//! A disk that becomes full, and has room again.

use std::path::Path;
use std::process::Command;

use ff_backend_sqlite::SqliteBackend;
use ff_core::backend::EngineBackend;
use ff_core::error::ErrorClass;
use ff_core::ids::ExecutionId;
use ff_core::{Blob, EngineError};
use libtest_mimic::{Failed, Trial};

use crate::kit::{Outcome, create, finish, open, says};

/// Executions that fill any of these disks.
const ENOUGH: usize = 5_000;

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test("a_full_disk_is_told_and_loses_nothing", a_full_disk)]
}

/// A small disk in memory, gone with the value.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// None where this user may not mount.
    fn mount() -> Result<Option<Self>, Failed> {
        let directory = tempfile::tempdir()?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(directory.path())
            .output()
            .is_ok_and(|output| output.status.success());
        Ok(mounted.then(|| Self(directory)))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A mount that stays is no reason to fail a test that passed.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

#[allow(clippy::print_stdout, reason = "a test that cannot run says so")]
fn a_full_disk() -> Outcome {
    let Some(disk) = SmallDisk::mount()? else {
        println!("skipped: this user may not mount a small disk, so none becomes full");
        return Ok(());
    };
    let reserve = disk.path().join("reserve");
    std::fs::write(&reserve, vec![7; 3 << 20])?;
    let path = disk.path().join("flow.db");
    finish(async {
        let backend = open(&path).await?;
        let mut kept = Vec::new();
        // More than once: whoever meets a full disk tries again.
        for _ in 0..2 {
            fill(&backend, &mut kept).await?;
            everything_is_there(&backend, &kept).await?;
        }
        std::fs::remove_file(&reserve)?;
        for nth in 0..20 {
            let payload = bytes(kept.len() + nth);
            kept.push((create(&backend, payload.clone()).await?, payload));
        }
        everything_is_there(&backend, &kept).await?;
        is_sound(&backend).await?;
        drop(backend);
        let backend = open(&path).await?;
        everything_is_there(&backend, &kept).await?;
        is_sound(&backend).await
    })
}

/// Submits until the disk is full, and keeps what was acknowledged.
async fn fill(backend: &SqliteBackend, kept: &mut Vec<(ExecutionId, Blob)>) -> Outcome {
    for _ in 0..ENOUGH {
        let payload = bytes(kept.len());
        match create(backend, payload.clone()).await {
            Ok(id) => kept.push((id, payload)),
            Err(error @ EngineError::Transport { .. }) if error.class() == ErrorClass::Retryable => {
                return says(&error.to_string(), &["the disk is full", "Free some space and try again"]);
            }
            Err(error) => return Err(format!("another error: {error:?}").into()),
        }
    }
    Err("the disk never became full".into())
}

fn bytes(nth: usize) -> Blob {
    Blob::from(vec![u8::try_from(nth % 251).unwrap_or(0); 8_192])
}

async fn everything_is_there(backend: &dyn EngineBackend, kept: &[(ExecutionId, Blob)]) -> Outcome {
    for (id, payload) in kept {
        if backend.read_execution_context(*id).await?.input_payload != *payload {
            return Err(format!("{id} has another payload").into());
        }
    }
    Ok(())
}

async fn is_sound(backend: &SqliteBackend) -> Outcome {
    let report = backend.store().check().await?;
    if report.is_sound() { Ok(()) } else { Err(format!("{:?}", report.problems).into()) }
}

//! Whether a server can be used, and what it needs to know before it is: our functions, and how the deployment is laid out.

use std::sync::LazyLock;

use ff_core::{EngineError, Result};
use redis::Value;
use sha2::{Digest, Sha256};

use crate::address::Layout;
use crate::connection::Link;
use crate::error::Trouble;
use crate::options::ValkeyOptions;
use crate::tables::{bytes, list, unexpected};

/// The layout that this program writes.
const LAYOUT: u16 = 1;

/// The oldest program that can use what this one writes, by the layout it knows.
const MIN_COMPATIBLE: u16 = 1;

/// Bytes of the digest that tells one version of the functions from another.
const DIGEST: usize = 6;

struct Library {
    name: String,
    source: String,
}

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let text = functions();
    let digest: String = Sha256::digest(text).iter().take(DIGEST).map(|byte| format!("{byte:02x}")).collect();
    let name = format!("ff_{digest}");
    let source = format!("#!lua name={name}\n{}", text.replace("LIBRARY", &name));
    Library { name, source }
});

/// What the server does for us.
#[must_use]
pub const fn functions() -> &'static str {
    include_str!("functions.lua")
}

/// The name under which the server knows one of our functions.
pub(crate) fn function(name: &str) -> String {
    format!("{}_{name}", LIBRARY.name)
}

/// The command that gives the server our functions.
pub(crate) fn load_functions() -> redis::Cmd {
    let mut command = redis::cmd("FUNCTION");
    command.arg("LOAD").arg(&LIBRARY.source);
    command
}

/// Makes sure that a server can be used, and learns how the deployment is laid out; a new one is laid out as the options say.
pub(crate) async fn prepare(link: &Link, options: &ValkeyOptions) -> Result<Layout> {
    check_server(link, options).await?;
    link.load_functions().await?;
    let key = Layout::deployment(&options.prefix);
    for (field, value) in [("layout", LAYOUT), ("min_compatible", MIN_COMPATIBLE), ("shards", options.new_shards())] {
        let mut command = redis::cmd("HSETNX");
        command.arg(&key).arg(field).arg(value);
        link.ask(&command).await?;
    }
    let mut command = redis::cmd("HMGET");
    command.arg(&key).arg(&["layout", "min_compatible", "shards"]);
    let mut fields = list(link.ask(&command).await?)?.into_iter();
    let mut number = || -> Result<u16> {
        let text = bytes(fields.next().unwrap_or(Value::Nil))?;
        std::str::from_utf8(&text)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| unexpected("no layout is noted"))
    };
    let (layout, min_compatible, shards) = (number()?, number()?, number()?);
    if min_compatible > LAYOUT {
        return Err(EngineError::invalid(format_args!(
            "the keys with the prefix {:?} have layout {layout}, which needs a program that knows layout {min_compatible}; this one knows {LAYOUT}. \
             Use a newer program, or another prefix",
            options.prefix.as_str()
        )));
    }
    if let Some(wanted) = options.shards
        && wanted != shards
    {
        return Err(EngineError::invalid(format_args!(
            "the deployment with the prefix {:?} was laid out with {shards} shards, not {wanted}. Leave the number out, or use another prefix",
            options.prefix.as_str()
        )));
    }
    Ok(Layout::new(options.prefix.clone(), shards))
}

/// Refuses a server that is too old, or that throws keys away; warns of one that forgets everything when it stops.
async fn check_server(link: &Link, options: &ValkeyOptions) -> Result<()> {
    let about = link.about_server().await?;
    let (what, version) = match (about.get("valkey_version"), about.get("redis_version")) {
        (Some(version), _) => ("Valkey", version),
        (None, Some(version)) => ("Redis", version),
        (None, None) => return Err(unexpected("it does not tell its version")),
    };
    // Valkey took over from Redis 7.2, and so did its numbers.
    if major(version) < 7 {
        let what = format!("{what} {version}");
        return Err(Trouble::TooOld { target: options.target(), what }.into());
    }
    if let Some(policy) = about.get("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        return Err(Trouble::Evicts { target: options.target(), policy: policy.clone() }.into());
    }
    if about.get("aof_enabled").is_some_and(|enabled| enabled == "0") {
        tracing::warn!(
            server = options.target(),
            "the server keeps no append-only file: what it acknowledged since its last snapshot is lost when it stops; set appendonly to yes"
        );
    }
    Ok(())
}

fn major(version: &str) -> u32 {
    version.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_library_tells_its_content() {
        assert!(LIBRARY.source.starts_with(&format!("#!lua name={}\n", LIBRARY.name)));
        assert!(LIBRARY.source.contains(&function("commit")) && !LIBRARY.source.contains("LIBRARY"));
    }

    #[test]
    fn the_functions_stay_few_and_short() {
        let code = functions().lines().filter(|line| !line.trim().is_empty() && !line.starts_with("--")).count();
        assert!(code < 180, "{code} lines");
    }
}

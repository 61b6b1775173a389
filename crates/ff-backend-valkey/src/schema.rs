//! Whether a server can be used, and what it needs to know before it is: our functions, and how the deployment is laid out.

use std::sync::LazyLock;

use ff_core::{EngineError, Result};
use redis::Value;
use sha2::{Digest, Sha256};

use crate::address::Layout;
use crate::connection::{About, Link};
use crate::error::Trouble;
use crate::options::ValkeyOptions;
use crate::tables::{bytes, list, unexpected};

/// The layout that this program writes.
const LAYOUT: u16 = 1;

/// The oldest program that can use what this one writes, by the layout it knows.
const MIN_COMPATIBLE: u16 = 1;

/// Bytes of the digest that tells one version of the functions from another.
const DIGEST: usize = 6;

/// Where functions came to Redis.
const OLDEST_REDIS: (u32, u32) = (7, 0);

/// Where Valkey took over from Redis, with its numbers.
const OLDEST_VALKEY: (u32, u32) = (7, 2);

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
    check_servers(link, options).await?;
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

/// Checks every server that commits go to.
async fn check_servers(link: &Link, options: &ValkeyOptions) -> Result<()> {
    for (server, about) in link.about_servers().await? {
        let target = if server.is_empty() { options.target() } else { server };
        check_server(target, options.is_cluster, &about)?;
    }
    Ok(())
}

/// Refuses a server that is of another kind than we were told, too old, or that throws keys away; warns of one that forgets everything
/// when it stops.
fn check_server(target: String, is_cluster: bool, about: &About) -> Result<()> {
    let mode = about.get("server_mode").or_else(|| about.get("redis_mode"));
    if !is_cluster && mode.is_some_and(|mode| mode == "cluster") {
        return Err(Trouble::OfCluster { target }.into());
    }
    let (what, version, oldest) = match (about.get("valkey_version"), about.get("redis_version")) {
        (Some(version), _) => ("Valkey", version, OLDEST_VALKEY),
        (None, Some(version)) => ("Redis", version, OLDEST_REDIS),
        (None, None) => return Err(unexpected("it does not tell its version")),
    };
    if release(version) < oldest {
        let what = format!("{what} {version}");
        return Err(Trouble::TooOld { target, what }.into());
    }
    if let Some(policy) = about.get("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        return Err(Trouble::Evicts { target, policy: policy.clone() }.into());
    }
    if about.get("aof_enabled").is_some_and(|enabled| enabled == "0") {
        tracing::warn!(
            server = target,
            "the server keeps no append-only file: what it acknowledged since its last snapshot is lost when it stops; set appendonly to yes"
        );
    }
    Ok(())
}

/// The first two numbers of a version; 0 for what is none.
fn release(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_library_tells_its_content() {
        assert!(LIBRARY.source.starts_with(&format!("#!lua name={}\n", LIBRARY.name)));
        assert!(LIBRARY.source.contains(&function("commit")) && !LIBRARY.source.contains("LIBRARY"));
    }

    /// What becomes of a server that tells this about itself, beside what every server tells.
    fn judged(told: &[(&str, &str)]) -> Result<()> {
        let told = told.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        check_server("host:6379".to_owned(), false, &told.collect())
    }

    #[test]
    fn servers_without_our_kind_of_functions_are_too_old() {
        for version in ["7.0.0", "7.2.4", "7.10.1", "8.0.2", "10.1.0", "255.255.255"] {
            judged(&[("redis_version", version)]).unwrap_or_else(|error| panic!("{version}: {error}"));
        }
        for version in ["2.8.17", "5.0.14", "6.2.7", "6.9.240", "unstable"] {
            let told = judged(&[("redis_version", version)]).unwrap_err().to_string();
            assert!(told.contains(&format!("host:6379 is Redis {version}")) && told.contains("Redis 7.0"), "{told}");
        }
    }

    #[test]
    fn a_node_of_a_cluster_says_so_in_one_of_two_ways() {
        for name in ["redis_mode", "server_mode"] {
            let told = judged(&[("redis_version", "7.2.4"), (name, "cluster")]).unwrap_err().to_string();
            assert!(told.contains("host:6379 is a node of a cluster"), "{told}");
            judged(&[("redis_version", "7.2.4"), (name, "standalone")]).unwrap();
        }
    }

    #[test]
    fn of_valkey_its_own_version_counts() {
        // For the sake of programs that know nothing else, it also says which Redis it is like.
        for version in ["7.2.4", "7.2.5", "8.0.1", "9.0.0"] {
            judged(&[("redis_version", "7.2.4"), ("valkey_version", version)])
                .unwrap_or_else(|error| panic!("{version}: {error}"));
        }
        for version in ["7.1.9", "6.2.7"] {
            let told = judged(&[("redis_version", "7.2.4"), ("valkey_version", version)]).unwrap_err().to_string();
            assert!(told.contains(&format!("host:6379 is Valkey {version}")) && told.contains("Valkey 7.2"), "{told}");
        }
        assert!(judged(&[]).is_err(), "it tells no version at all");
    }

    #[test]
    fn the_functions_stay_few_and_short() {
        let code = functions().lines().filter(|line| !line.trim().is_empty() && !line.starts_with("--")).count();
        assert!(code < 200, "{code} lines");
    }
}

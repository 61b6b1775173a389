//! Moving slots from one node of a cluster to another.

use std::collections::BTreeSet;
use std::io;

use super::{ValkeyCluster, ValkeyServer};

/// Keys that are moved at a time: few, so that a slot is in two places for a while.
const KEYS_AT_ONCE: &str = "20";

/// How many milliseconds they may take.
const TIMEOUT_MS: &str = "5000";

impl ValkeyCluster {
    /// The slots that hold keys with a tag in braces.
    ///
    /// # Errors
    /// When a node does not answer.
    pub fn slots_in_use(&self) -> io::Result<Vec<u16>> {
        let mut slots = BTreeSet::new();
        for number in self.primaries() {
            let node = &self.nodes()[number];
            let keys = node.ask_bytes(&[b"KEYS", b"{*"])?;
            let tags: BTreeSet<&[u8]> =
                keys.iter().filter_map(|key| key.split_inclusive(|b| *b == b'}').next()).collect();
            for tag in tags {
                slots.insert(number_of(&node.ask_bytes(&[b"CLUSTER", b"KEYSLOT", tag])?)?);
            }
        }
        Ok(slots.into_iter().collect())
    }

    /// Moves a slot to another primary, key by key, while others may use it; the choice says to which.
    ///
    /// # Errors
    /// When a node refuses.
    pub fn move_slot(&self, slot: u16, choice: usize) -> io::Result<()> {
        let primaries: Vec<&ValkeyServer> = self.primaries().into_iter().map(|number| &self.nodes()[number]).collect();
        let mut ids = Vec::new();
        for primary in &primaries {
            ids.push(primary.ask(&["CLUSTER", "MYID"])?);
        }
        let owner = owner_of(slot, primaries[0])?;
        let from = ids.iter().position(|id| *id == owner).ok_or_else(|| io::Error::other("nobody has the slot"))?;
        let to = (from + 1 + choice % (primaries.len() - 1)) % primaries.len();
        let text = slot.to_string();
        primaries[to].ask(&["CLUSTER", "SETSLOT", &text, "IMPORTING", &ids[from]])?;
        primaries[from].ask(&["CLUSTER", "SETSLOT", &text, "MIGRATING", &ids[to]])?;
        move_keys(&text, primaries[from], primaries[to])?;
        // The new owner first: the others hear of it from there.
        for node in [to, from].into_iter().chain((0..primaries.len()).filter(|node| *node != to && *node != from)) {
            primaries[node].ask(&["CLUSTER", "SETSLOT", &text, "NODE", &ids[to]])?;
        }
        Ok(())
    }
}

fn move_keys(slot: &str, from: &ValkeyServer, to: &ValkeyServer) -> io::Result<()> {
    let port = to.port().to_string();
    loop {
        let count = KEYS_AT_ONCE.as_bytes();
        let keys = from.ask_bytes(&[b"CLUSTER", b"GETKEYSINSLOT", slot.as_bytes(), count])?;
        if keys.is_empty() {
            return Ok(());
        }
        let head: [&[u8]; 7] = [b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0", TIMEOUT_MS.as_bytes(), b"KEYS"];
        let command: Vec<&[u8]> = head.into_iter().chain(keys.iter().map(Vec::as_slice)).collect();
        from.ask_bytes(&command)?;
    }
}

/// The id of the node that has a slot, as a node knows it.
fn owner_of(slot: u16, node: &ValkeyServer) -> io::Result<String> {
    let told = node.ask(&["CLUSTER", "NODES"])?;
    let has_slot = |stretch: &str| {
        let (first, last) = stretch.split_once('-').unwrap_or((stretch, stretch));
        matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    };
    let owner = told.lines().find(|line| line.split(' ').skip(8).any(has_slot));
    owner
        .and_then(|line| line.split(' ').next())
        .map(str::to_owned)
        .ok_or_else(|| io::Error::other("nobody has the slot"))
}

fn number_of(answer: &[Vec<u8>]) -> io::Result<u16> {
    let text = answer.first().and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.and_then(|text| text.parse().ok()).ok_or_else(|| io::Error::other("no number"))
}

//! The way to the servers of a cluster: who of them has which slots, and a connection to each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{
    Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};

use crate::connection::Node;
use crate::error::is_passing;
use crate::options::ValkeyOptions;

/// How long a node may take to tell who has which slots, before another one is asked.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Address {
    host: String,
    port: u16,
}

/// A stretch of slots, from the first to the last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    first: u16,
    last: u16,
    /// The primary, then its replicas; nobody if it is not known where the primary is.
    nodes: Vec<Address>,
}

/// What is known about the cluster.
#[derive(Default)]
struct Map {
    /// Which map it is: whoever was led astray by it wants another one.
    edition: u64,
    /// How often somebody began to look for a newer one.
    looks: u64,
    /// By their last slot.
    stretches: BTreeMap<u16, Stretch>,
    ways: HashMap<Address, Arc<Node>>,
}

impl Map {
    fn primary_of(&self, slot: u16) -> Option<&Address> {
        let (_, stretch) = self.stretches.range(slot..).next()?;
        stretch.nodes.first().filter(|_| stretch.first <= slot)
    }

    fn primaries(&self) -> BTreeSet<Address> {
        self.stretches.values().filter_map(|stretch| stretch.nodes.first()).cloned().collect()
    }

    fn nodes(&self) -> BTreeSet<Address> {
        self.stretches.values().flat_map(|stretch| &stretch.nodes).cloned().collect()
    }
}

pub(crate) struct Cluster {
    options: ValkeyOptions,
    map: Mutex<Map>,
    /// Held by the one who looks who has which slots; tells which look failed last, and why.
    looking: tokio::sync::Mutex<Option<(u64, RedisError)>>,
}

impl Cluster {
    pub(crate) async fn connect(options: &ValkeyOptions) -> RedisResult<Arc<Self>> {
        let cluster = Arc::new(Self { options: options.clone(), map: Mutex::default(), looking: Default::default() });
        cluster.look(0, None).await?;
        Ok(cluster)
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends commands one right after the other to the primary of a slot, or to any primary; they are on their way when the future was polled
    /// for the first time. The first error of any of them is the answer.
    pub(crate) async fn send(self: &Arc<Self>, slot: Option<u16>, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let (edition, primary) = self.primary_of(slot);
        let Some(primary) = primary else {
            self.look_again(edition, None).await;
            return Err((ErrorKind::ClusterConnectionNotFound, "nobody has the slot").into());
        };
        let error = match self.send_to(&primary, commands).await {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        let redirected = redirected(&error, &primary);
        match (error.kind(), redirected) {
            // The slot is on its way to another node, and what this is about is there already.
            (ErrorKind::Server(ServerErrorKind::Ask), Some(node)) => {
                let answers = self.send_to(&node, &asking(commands)).await?;
                Ok(answers.into_iter().skip(1).collect())
            }
            (ErrorKind::Server(ServerErrorKind::TryAgain), _) => Err(error),
            (_, node) => {
                if is_passing(&error) {
                    self.look_again(edition, node).await;
                }
                Err(error)
            }
        }
    }

    /// Sends a command to every primary; the answers come with the names of their servers.
    pub(crate) async fn send_to_primaries(self: &Arc<Self>, command: &Cmd) -> Vec<(String, RedisResult<Value>)> {
        let (edition, primaries) = {
            let map = self.lock();
            (map.edition, map.primaries())
        };
        let commands = one(command);
        let answers = primaries.into_iter().map(|primary| {
            let commands = &commands;
            async move {
                let answer = self.send_to(&primary, commands).await.map(|answers| answers.into_iter().next());
                (format!("{}:{}", primary.host, primary.port), answer.map(Option::unwrap_or_default))
            }
        });
        let answers = join_all(answers).await;
        if answers.iter().any(|(_, answer)| answer.as_ref().is_err_and(is_passing)) {
            self.look_again(edition, None).await;
        }
        answers
    }

    /// Every node that is known. Those that we were told of at first may have left the cluster since.
    pub(crate) fn nodes(&self) -> Vec<ConnectionInfo> {
        let known = self.lock().nodes();
        known.iter().map(|node| self.at(node)).collect()
    }

    fn primary_of(&self, slot: Option<u16>) -> (u64, Option<Address>) {
        let map = self.lock();
        let primary = match slot {
            Some(slot) => map.primary_of(slot).cloned(),
            None => fastrand::choice(map.primaries()),
        };
        (map.edition, primary)
    }

    async fn send_to(&self, node: &Address, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let answers = self.way_to(node).send_all(commands).await?;
        answers.into_iter().map(Value::extract_error).collect()
    }

    fn way_to(&self, node: &Address) -> Arc<Node> {
        let mut map = self.lock();
        if let Some(way) = map.ways.get(node) {
            return Arc::clone(way);
        }
        let way = Arc::new(Node::new(&self.options, self.at(node)));
        map.ways.insert(node.clone(), Arc::clone(&way));
        way
    }

    /// How to connect to a node: as to the first one, elsewhere.
    fn at(&self, node: &Address) -> ConnectionInfo {
        let Address { host, port } = node.clone();
        let first = &self.options.nodes[0];
        let address = match first.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        first.clone().set_addr(address)
    }

    /// Finds out who has which slots now, unless somebody has; goes on although nobody may wait for it any more.
    async fn look_again(self: &Arc<Self>, edition: u64, node: Option<Address>) {
        let cluster = Arc::clone(self);
        let look = tokio::spawn(async move { cluster.look(edition, node).await });
        if let Ok(Err(error)) = look.await {
            tracing::debug!(%error, "no node of the cluster tells who has which slots");
        }
    }

    /// Asks nodes in turn who has which slots, beginning with one that surely knows. Who waited while another one did so in vain need not.
    async fn look(&self, edition: u64, node: Option<Address>) -> RedisResult<()> {
        let earlier = self.lock().looks;
        let mut failed = self.looking.lock().await;
        let (look, known) = {
            let mut map = self.lock();
            if map.edition != edition {
                return Ok(());
            }
            // One that began since then saw what this one would see.
            if let Some((look, failure)) = &*failed
                && *look > earlier
            {
                return Err(failure.clone());
            }
            map.looks += 1;
            (map.looks, map.nodes())
        };
        let outcome = self.tour(node, known.into_iter().collect()).await;
        *failed = outcome.as_ref().err().map(|failure| (look, failure.clone()));
        outcome
    }

    async fn tour(&self, node: Option<Address>, mut known: Vec<Address>) -> RedisResult<()> {
        fastrand::shuffle(&mut known);
        let mut failure = RedisError::from((ErrorKind::ClusterConnectionNotFound, "no node is known"));
        for node in node.into_iter().chain(known).chain(self.options.nodes.iter().filter_map(address)) {
            match tokio::time::timeout(PATIENCE, self.ask_for_slots(&node)).await {
                Ok(Ok(stretches)) => {
                    self.learn(stretches);
                    return Ok(());
                }
                Ok(Err(error)) => failure = error,
                Err(_) => failure = (ErrorKind::Io, "a node does not answer").into(),
            }
        }
        Err(failure)
    }

    async fn ask_for_slots(&self, node: &Address) -> RedisResult<Vec<Stretch>> {
        let answers = self.send_to(node, &one(redis::cmd("CLUSTER").arg("SLOTS"))).await?;
        let stretches = answers.into_iter().next().and_then(|answer| read_slots(answer, node)).unwrap_or_default();
        if stretches.iter().all(|stretch| stretch.nodes.is_empty()) {
            return Err((ErrorKind::ClusterConnectionNotFound, "a node knows nobody who has slots").into());
        }
        Ok(stretches)
    }

    fn learn(&self, stretches: Vec<Stretch>) {
        let mut map = self.lock();
        map.edition += 1;
        map.stretches = stretches.into_iter().map(|stretch| (stretch.last, stretch)).collect();
        let nodes = map.nodes();
        map.ways.retain(|node, _| nodes.contains(node));
    }
}

/// A command by itself.
pub(crate) fn one(command: &Cmd) -> Pipeline {
    let mut commands = Pipeline::with_capacity(1);
    commands.add_command(command.clone());
    commands
}

/// Commands for a node that gets their slot but does not have it yet.
fn asking(commands: &Pipeline) -> Pipeline {
    let mut out = Pipeline::with_capacity(commands.len() + 1);
    out.add_command(redis::cmd("ASKING"));
    for command in commands.cmd_iter() {
        out.add_command(command.clone());
    }
    out
}

fn address(node: &ConnectionInfo) -> Option<Address> {
    match node.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(Address { host: host.clone(), port: *port })
        }
        _ => None,
    }
}

/// The node that an error sends us to, as another node knows it.
fn redirected(error: &RedisError, teller: &Address) -> Option<Address> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some(Address { host: host_or(host, teller), port: port.parse().ok()? })
}

/// A node that does not know its own host is reached where it answers.
fn host_or(host: &str, teller: &Address) -> String {
    if host.is_empty() { teller.host.clone() } else { host.to_owned() }
}

/// The answer to `CLUSTER SLOTS`: for each stretch its first and last slot, then its nodes, each with host and port.
fn read_slots(answer: Value, teller: &Address) -> Option<Vec<Stretch>> {
    let Value::Array(stretches) = answer else { return None };
    stretches.into_iter().map(|stretch| read_stretch(stretch, teller)).collect()
}

fn read_stretch(stretch: Value, teller: &Address) -> Option<Stretch> {
    let Value::Array(fields) = stretch else { return None };
    let [Value::Int(first), Value::Int(last), nodes @ ..] = &*fields else { return None };
    let node = |node: &Value| match node {
        Value::Array(fields) => match &**fields {
            [host, Value::Int(port), ..] => {
                let host = if let Value::BulkString(host) = host { std::str::from_utf8(host).ok()? } else { "" };
                let port = u16::try_from(*port).ok().filter(|_| host != "?")?;
                Some(Address { host: host_or(host, teller), port })
            }
            _ => None,
        },
        _ => None,
    };
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    let mut nodes = nodes.iter().map(node);
    // One that nobody knows the host of is of no use, and a replica must not take the place of a primary.
    let primary = nodes.next().flatten();
    let nodes = primary.map(|primary| std::iter::once(primary).chain(nodes.flatten()).collect()).unwrap_or_default();
    Some(Stretch { first, last, nodes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn told(first: i64, last: i64, nodes: &[(&str, i64)]) -> Value {
        let node = |(host, port): &(&str, i64)| {
            Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(*port), Value::Nil])
        };
        Value::Array([Value::Int(first), Value::Int(last)].into_iter().chain(nodes.iter().map(node)).collect())
    }

    fn map(stretches: Vec<Value>) -> Map {
        let stretches = read_slots(Value::Array(stretches), &node("here", 1)).unwrap();
        Map { stretches: stretches.into_iter().map(|stretch| (stretch.last, stretch)).collect(), ..Map::default() }
    }

    #[test]
    fn each_slot_has_the_primary_that_comes_first() {
        let map = map(vec![told(0, 99, &[("a", 1), ("b", 2)]), told(200, 200, &[("c", 3)])]);
        for (slot, primary) in [(0, "a"), (99, "a"), (200, "c")] {
            assert_eq!(map.primary_of(slot).unwrap().host, primary, "{slot}");
        }
        assert_eq!((map.primary_of(100), map.primary_of(201)), (None, None), "nobody has them");
        assert_eq!((map.primaries().len(), map.nodes().len()), (2, 3));
    }

    #[test]
    fn a_node_that_does_not_know_its_host_is_where_it_answers() {
        let map = map(vec![told(0, 99, &[("", 7), ("?", 8)])]);
        assert_eq!(map.nodes(), BTreeSet::from([node("here", 7)]));
    }

    #[test]
    fn no_replica_takes_the_place_of_a_primary_that_is_nowhere() {
        let map = map(vec![told(0, 99, &[("?", 7), ("a", 8)]), told(100, 199, &[("b", 9)])]);
        assert_eq!((map.primary_of(5), map.primary_of(100)), (None, Some(&node("b", 9))));
    }

    #[tokio::test]
    async fn who_waits_through_a_failed_look_does_not_repeat_it() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let options = ValkeyOptions::new(&format!("redis://127.0.0.1:{port}?cluster=true")).unwrap();
        let cluster = Cluster { options, map: Mutex::default(), looking: Default::default() };
        let busy = cluster.looking.lock().await;
        let crowd = join_all((0..9).map(|_| cluster.look(0, None)));
        let (outcomes, ()) = tokio::join!(crowd, async { drop(busy) });
        assert!(outcomes.iter().all(Result::is_err));
        assert_eq!(cluster.lock().looks, 1, "one for all");
        assert!(cluster.look(0, None).await.is_err());
        assert_eq!(cluster.lock().looks, 2, "that was earlier");
    }

    #[test]
    fn other_answers_are_not_understood() {
        assert_eq!(read_slots(Value::Nil, &node("here", 1)), None);
        assert_eq!(read_slots(Value::Array(vec![Value::Int(1)]), &node("here", 1)), None);
    }
}

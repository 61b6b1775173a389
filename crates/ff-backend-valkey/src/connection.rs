//! The way to the server, or to all servers of a cluster.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use ff_core::Result;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr};
use redis::{Client, Cmd, Pipeline, RedisError, RedisResult, Value};

use crate::error::{Trouble, explain, explain_connecting, is_passing, lacks_functions};
use crate::options::{Replicas, ValkeyOptions};
use crate::schema;
use crate::tables::{bytes, number, unexpected};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server may take to answer a command.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a command is tried again while the server is away.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How often the library itself follows a slot that has moved.
const REDIRECTIONS: u32 = 16;

/// What a server tells about itself, by the names that it gives it.
pub(crate) type About = HashMap<String, String>;

#[derive(Clone)]
enum Way {
    One(ConnectionManager),
    Cluster(ClusterConnection),
}

/// The way to the server; clones share it. What is sent earlier is done earlier.
#[derive(Clone)]
pub(crate) struct Link {
    way: Way,
}

impl Link {
    pub(crate) async fn connect(options: &ValkeyOptions) -> Result<Self> {
        let way = if options.is_cluster { cluster(options).await } else { one(options).await };
        way.map(|way| Self { way }).map_err(|error| explain_connecting(options, &error))
    }

    /// Sends a command once. It is on its way when the future was polled for the first time.
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let answer = match self.way.clone() {
            Way::One(mut connection) => connection.req_packed_command(command).await,
            Way::Cluster(mut connection) => connection.req_packed_command(command).await,
        };
        answer.and_then(Value::extract_error)
    }

    /// Sends commands one right after the other to the server that has a slot.
    async fn send_all(&self, commands: Pipeline, slot: u16) -> RedisResult<Vec<Value>> {
        let count = commands.len();
        let answers = match self.way.clone() {
            Way::One(mut connection) => connection.req_packed_commands(&commands, 0, count).await,
            Way::Cluster(mut connection) => connection.route_pipeline(commands, 0, count, primary_of(slot)).await,
        };
        answers?.into_iter().map(Value::extract_error).collect()
    }

    /// Asks the server that has a slot, whatever the command is about.
    pub(crate) async fn ask_at(&self, slot: u16, command: &Cmd) -> Result<Value> {
        let mut one = Pipeline::new();
        one.add_command(command.clone());
        let answers = self.persist(|| self.send_all(one.clone(), slot)).await?;
        answers.into_iter().next().ok_or_else(|| unexpected("there is none"))
    }

    /// Asks until there is an answer, for a while. Only for what may be done twice.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value> {
        self.persist(|| self.send(command)).await
    }

    /// Commits, which may be sent twice because the server knows the commit. With `replicas`, those have it when this answers.
    pub(crate) async fn commit(&self, command: Cmd, slot: u16, replicas: Option<Replicas>) -> Result<Value> {
        let Some(Replicas { count, patience }) = replicas else { return self.ask(&command).await };
        let mut wait = redis::cmd("WAIT");
        wait.arg(count).arg(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        let mut both = Pipeline::new();
        both.add_command(command).add_command(wait);
        let answers = self.persist(|| self.send_all(both.clone(), slot)).await?;
        let [answer, had] = answers.try_into().map_err(|_| unexpected("it has another length"))?;
        let had = number(&had)?;
        if had < i64::from(count) {
            return Err(Trouble::TooFewReplicas { asked: count, had }.into());
        }
        Ok(answer)
    }

    /// Tries until it succeeds, for a while.
    async fn persist<T, F: Future<Output = RedisResult<T>>>(&self, attempt: impl Fn() -> F) -> Result<T> {
        let began = Instant::now();
        let mut tries = 0;
        loop {
            let error = match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if began.elapsed() > PATIENCE {
                return Err(explain(&error));
            }
            if lacks_functions(&error) {
                self.load_functions().await?;
            } else if !is_passing(&error) {
                return Err(explain(&error));
            }
            tokio::time::sleep(pause(tries)).await;
            tries += 1;
        }
    }

    /// Gives all primaries our functions, unless they have them.
    pub(crate) async fn load_functions(&self) -> Result<()> {
        match self.send(&schema::load_functions()).await {
            Ok(_) => Ok(()),
            Err(error) if has_them(&error) => Ok(()),
            Err(error) => Err(explain(&error)),
        }
    }

    /// What each of the servers tells about itself, by the address that it has in its cluster.
    pub(crate) async fn about_servers(&self) -> Result<BTreeMap<String, About>> {
        let mut told: BTreeMap<String, About> = BTreeMap::new();
        for section in ["server", "memory", "persistence"] {
            let mut command = redis::cmd("INFO");
            command.arg(section);
            for (server, text) in texts(self.ask(&command).await?)? {
                let fields = text.lines().filter_map(|line| line.split_once(':'));
                let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
                told.entry(server).or_default().extend(fields);
            }
        }
        Ok(told)
    }
}

/// The primary that has a slot.
fn primary_of(slot: u16) -> SingleNodeRoutingInfo {
    SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master))
}

/// The answer of one server, which has no name, or of several by name.
fn texts(answer: Value) -> Result<Vec<(String, String)>> {
    let text = |value| String::from_utf8(bytes(value)?).map_err(|_| unexpected("it should be text"));
    match answer {
        Value::Map(answers) => answers.into_iter().map(|(name, answer)| Ok((text(name)?, text(answer)?))).collect(),
        answer => Ok(vec![(String::new(), text(answer)?)]),
    }
}

fn has_them(error: &RedisError) -> bool {
    error.to_string().contains("already exists")
}

async fn one(options: &ValkeyOptions) -> RedisResult<Way> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(ANSWER_TIMEOUT))
        .set_number_of_retries(2);
    let client = Client::open(options.nodes[0].clone())?;
    client.get_connection_manager_with_config(config).await.map(Way::One)
}

async fn cluster(options: &ValkeyOptions) -> RedisResult<Way> {
    let mut builder = ClusterClientBuilder::new(options.nodes.clone())
        .connection_timeout(CONNECT_TIMEOUT)
        .response_timeout(ANSWER_TIMEOUT)
        .retries(REDIRECTIONS);
    if let Some(certificates) = &options.certificates {
        builder = builder.certs(certificates.clone());
    }
    let client = builder.build()?;
    client.get_async_connection().await.map(Way::Cluster)
}

/// Longer after each try, and never the same for two who meet.
pub(crate) fn pause(tries: u32) -> Duration {
    let most = Duration::from_millis(2 << tries.min(7)).min(PAUSE_MAX);
    most.mul_f64(0.5 + fastrand::f64() / 2.0)
}

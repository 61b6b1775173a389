//! The way to the server, or to all servers of a cluster.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ff_core::Result;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::{
    Arg, AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, Value,
};

use crate::address::slot_of;
use crate::cluster::{Cluster, one};
use crate::error::{Trouble, explain, explain_connecting, is_passing, lacks_functions};
use crate::options::{Replicas, ValkeyOptions};
use crate::schema;
use crate::tables::{bytes, number, unexpected};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server may take to answer a command, beyond the time for its replicas.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a command is tried again while the server is away. Several answers may fail to come in that time.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What a server tells about itself, by the names that it gives it.
pub(crate) type About = HashMap<String, String>;

/// A connection, or the attempt to make it, which all wait for who want to use it.
type Connecting = Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>;

/// The way to one server. Its connection is made when it is first used, and anew after a failure, be it of the connection or of making it.
pub(crate) struct Node {
    info: ConnectionInfo,
    answer_timeout: Duration,
    current: Mutex<Option<Connecting>>,
}

impl Node {
    pub(crate) fn new(options: &ValkeyOptions, info: ConnectionInfo) -> Self {
        // Who waits for replicas holds up everybody on the same connection.
        let for_replicas = options.replicas.map_or(Duration::ZERO, |replicas| replicas.patience);
        Self { info, answer_timeout: ANSWER_TIMEOUT + for_replicas, current: Mutex::default() }
    }

    /// Sends a command; what the server says is wrong with it is the answer.
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.use_connection(async |mut connection| connection.send_packed_command(command).await).await
    }

    /// Sends commands one right after the other; what the server says is wrong with one is its answer.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let send = async |mut connection: MultiplexedConnection| {
            connection.send_packed_commands(commands, 0, commands.len()).await
        };
        self.use_connection(send).await
    }

    /// Connects, unless somebody has.
    async fn connect(&self) -> RedisResult<()> {
        self.use_connection(async |_| Ok(())).await
    }

    async fn use_connection<T, F: Future<Output = RedisResult<T>>>(
        &self,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> RedisResult<T> {
        let connecting = self.connecting()?;
        let (answer, is_usable) = match connecting.clone().await {
            Ok(connection) => {
                let answer = send(connection).await;
                let is_usable = answer.as_ref().err().is_none_or(|error| error.code().is_some());
                (answer, is_usable)
            }
            Err(error) => (Err(error), false),
        };
        if !is_usable {
            self.forget(&connecting);
        }
        answer
    }

    fn connecting(&self) -> RedisResult<Connecting> {
        let mut current = self.lock();
        if let Some(connecting) = &*current {
            return Ok(connecting.clone());
        }
        let client = Client::open(self.info.clone())?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(self.answer_timeout));
        let connecting = async move { client.get_multiplexed_async_connection_with_config(&config).await };
        let connecting = connecting.boxed().shared();
        // It goes on although those who wait for it may give up: its time runs.
        tokio::spawn(connecting.clone());
        Ok(current.insert(connecting).clone())
    }

    /// Has the next one connect anew, unless somebody does so already: others may have failed on the same connection earlier.
    fn forget(&self, connecting: &Connecting) {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|current| current.ptr_eq(connecting)) {
            *current = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Connecting>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
enum Way {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// The way to the server; clones share it. What is sent earlier is done earlier.
#[derive(Clone)]
pub(crate) struct Link {
    way: Way,
}

impl Link {
    pub(crate) async fn connect(options: &ValkeyOptions) -> Result<Self> {
        let way = if options.is_cluster {
            Cluster::connect(options).await.map(Way::Cluster)
        } else {
            connect_to_one(options).await.map(Way::One)
        };
        way.map(|way| Self { way }).map_err(|error| explain_connecting(options, &error))
    }

    /// Sends a command once. It is on its way when the future was polled for the first time.
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        match &self.way {
            Way::One(node) => node.send(command).await.and_then(Value::extract_error),
            Way::Cluster(cluster) => only(cluster.send(slot_of_command(command), &one(command)).await?),
        }
    }

    /// Sends commands one right after the other to the server that has a slot.
    async fn send_all(&self, commands: &Pipeline, slot: u16) -> RedisResult<Vec<Value>> {
        match &self.way {
            Way::One(node) => node.send_all(commands).await?.into_iter().map(Value::extract_error).collect(),
            Way::Cluster(cluster) => cluster.send(Some(slot), commands).await,
        }
    }

    /// Sends a command to the server, which has no name, or to every primary of a cluster.
    async fn send_everywhere(&self, command: &Cmd) -> Vec<(String, RedisResult<Value>)> {
        match &self.way {
            Way::One(_) => vec![(String::new(), self.send(command).await)],
            Way::Cluster(cluster) => cluster.send_to_primaries(command).await,
        }
    }

    /// Asks the server that has a slot, whatever the command is about.
    pub(crate) async fn ask_at(&self, slot: u16, command: &Cmd) -> Result<Value> {
        let commands = one(command);
        self.persist(async || only(self.send_all(&commands, slot).await?)).await
    }

    /// Where news can be heard.
    pub(crate) fn nodes(&self, options: &ValkeyOptions) -> Vec<ConnectionInfo> {
        match &self.way {
            Way::One(_) => options.nodes.clone(),
            Way::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Asks until there is an answer, for a while. Only for what may be done twice.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value> {
        self.persist(|| self.send(command)).await
    }

    /// Commits, which may be sent twice because the server knows the commit. With `replicas`, those have it when this answers.
    pub(crate) async fn commit(&self, command: Cmd, slot: u16, replicas: Option<Replicas>) -> Result<Value> {
        let Some(Replicas { count, patience }) = replicas else { return self.ask(&command).await };
        let mut wait = redis::cmd("WAIT");
        wait.arg(count).arg(millis(patience));
        let mut both = Pipeline::new();
        both.add_command(command).add_command(wait);
        let answers = self.persist(|| self.send_all(&both, slot)).await?;
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
            let lacks = lacks_functions(&error);
            let failure = if lacks { self.give_functions().await.err() } else { Some(error) };
            if let Some(error) = failure.filter(|error| !is_passing(error)) {
                return Err(explain(&error));
            }
            tokio::time::sleep(pause(tries)).await;
            tries += 1;
        }
    }

    /// Gives all primaries our functions, unless they have them.
    pub(crate) async fn load_functions(&self) -> Result<()> {
        self.persist(|| self.give_functions()).await
    }

    async fn give_functions(&self) -> RedisResult<()> {
        for (_, answer) in self.send_everywhere(&schema::load_functions()).await {
            match answer {
                Err(error) if !has_them(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// What each of the servers tells about itself, by the address that it has in its cluster.
    pub(crate) async fn about_servers(&self) -> Result<BTreeMap<String, About>> {
        let mut told: BTreeMap<String, About> = BTreeMap::new();
        for section in ["server", "memory", "persistence"] {
            let mut command = redis::cmd("INFO");
            command.arg(section);
            let answers = self.persist(async || {
                let answers = self.send_everywhere(&command).await.into_iter();
                answers.map(|(server, answer)| Ok((server, answer?))).collect::<RedisResult<Vec<_>>>()
            });
            for (server, answer) in answers.await? {
                let text = String::from_utf8(bytes(answer)?).map_err(|_| unexpected("it should be text"))?;
                let fields = text.lines().filter_map(|line| line.split_once(':'));
                let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
                told.entry(server).or_default().extend(fields);
            }
        }
        Ok(told)
    }
}

/// The slot that a command is about, by its first key.
fn slot_of_command(command: &Cmd) -> Option<u16> {
    let mut words = command.args_iter().map(|word| if let Arg::Simple(word) = word { word } else { &[] });
    let key = match words.next()? {
        // Behind the name of the function and the number of keys.
        b"FCALL" | b"FCALL_RO" => (words.nth(1)? != b"0").then(|| words.next())?,
        _ => words.next(),
    };
    key.map(slot_of)
}

fn only(answers: Vec<Value>) -> RedisResult<Value> {
    answers.into_iter().next().ok_or_else(|| (ErrorKind::UnexpectedReturnType, "there is no answer").into())
}

fn has_them(error: &RedisError) -> bool {
    error.to_string().contains("already exists")
}

async fn connect_to_one(options: &ValkeyOptions) -> RedisResult<Arc<Node>> {
    let node = Node::new(options, options.nodes[0].clone());
    node.connect().await?;
    Ok(Arc::new(node))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Longer after each try, and never the same for two who meet.
pub(crate) fn pause(tries: u32) -> Duration {
    let most = Duration::from_millis(2 << tries.min(7)).min(PAUSE_MAX);
    most.mul_f64(0.5 + fastrand::f64() / 2.0)
}

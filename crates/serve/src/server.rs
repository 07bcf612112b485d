//! The server from its first connection to its last.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use weightloom_hub::Writer;

use crate::connection;
use crate::error::ServeError;
use crate::events::Phase;
use crate::options::ServeOptions;
use crate::reply;
use crate::routes::{self, Shared};
use crate::worker;

/// The pause after a connection could not be accepted, most likely because
/// there are too many files.
const PAUSE: Duration = Duration::from_millis(50);

/// How long those have to go whom the grace time did not suffice.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long the model's thread may take to notice that nobody wants it.
const LAST_STEP: Duration = Duration::from_secs(5);

/// Answers requests until `shutdown` comes. Then nothing new is accepted;
/// requests that are there are answered, as far as the grace time allows.
pub async fn serve(
    listener: TcpListener,
    writer: Writer,
    options: ServeOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    options.check()?;
    let (phase_is, phase) = watch::channel(Phase::Open);
    let writer = Arc::new(writer);
    // One runs, the others wait.
    let room = options.max_waiting.min(Semaphore::MAX_PERMITS - 1) + 1;
    let (jobs, ended) = worker::start(Arc::clone(&writer))?;
    let (grace, patience) = (options.grace, options.client_timeout);
    let most = options.max_connections.min(Semaphore::MAX_PERMITS);
    let places = Arc::new(Semaphore::new(room));
    let since = reply::now();
    let shared = Shared { writer, options, jobs, places, phase: phase.clone(), since };
    let router = routes::router(Arc::new(shared));

    let mut connections = JoinSet::new();
    let desk = Desk { listener, router, patience, most, phase };
    desk.accept(&mut connections, shutdown).await;
    // Nobody can come any more.
    drop(desk);
    let _ = phase_is.send(Phase::Closing);
    if timeout(grace, all(&mut connections)).await.is_err() {
        let _ = phase_is.send(Phase::Cut);
        let _ = timeout(LAST_WORDS, all(&mut connections)).await;
    }
    connections.shutdown().await;
    let _ = timeout(LAST_STEP, ended).await;
    Ok(())
}

/// Listens on an address and answers requests until `shutdown` comes, with a
/// runtime of its own. Port 0 takes any that is free; `on_ready` is told which,
/// as soon as connections are accepted.
pub fn run(
    address: &str,
    writer: Writer,
    options: ServeOptions,
    shutdown: impl Future<Output = ()>,
    on_ready: impl FnOnce(SocketAddr),
) -> Result<(), ServeError> {
    options.check()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| ServeError::Runtime { message: error.to_string() })?;
    let failed =
        |error: io::Error| ServeError::Listen { address: address.to_owned(), message: error.to_string() };
    let result = runtime.block_on(async {
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        on_ready(listener.local_addr().map_err(failed)?);
        serve(listener, writer, options, shutdown).await
    });
    // A request that is being read cannot be interrupted.
    runtime.shutdown_timeout(LAST_WORDS);
    result
}

/// Where connections come in.
struct Desk {
    listener: TcpListener,
    router: Router,
    patience: Duration,
    /// Connections at a time.
    most: usize,
    phase: watch::Receiver<Phase>,
}

impl Desk {
    async fn accept(&self, connections: &mut JoinSet<()>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                Some(_) = connections.join_next() => {}
                stream = self.next(), if connections.len() < self.most => {
                    let Ok(stream) = stream else { continue };
                    let held = connection::hold(stream, self.router.clone(), self.patience, self.phase.clone());
                    connections.spawn(held);
                }
            }
        }
    }

    async fn next(&self) -> io::Result<TcpStream> {
        match self.listener.accept().await {
            Ok((stream, _)) => Ok(stream),
            Err(error) => {
                sleep(PAUSE).await;
                Err(error)
            }
        }
    }
}

/// Waits for all connections.
async fn all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

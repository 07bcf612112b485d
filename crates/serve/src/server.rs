//! Accepting connections and shutting down.

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
use weightloom_hub::TextGenerator;

use crate::connection::serve_connection;
use crate::error::ServeError;
use crate::events::ServerState;
use crate::options::ServeOptions;
use crate::response;
use crate::routes::{self, AppState};
use crate::worker;

/// The pause after a failed accept, most likely because of too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// How long aborted requests may take to send their error.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the model's thread may take to finish its current step.
const WORKER_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves requests until `shutdown` completes. It then accepts no new ones, and
/// gives the current ones the grace period to finish.
pub async fn serve(
    listener: TcpListener,
    generator: TextGenerator,
    options: ServeOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    options.check()?;
    let (state_sender, server_state) = watch::channel(ServerState::Running);
    let generator = Arc::new(generator);
    // One request runs, the others wait.
    let permits = options.max_waiting.min(Semaphore::MAX_PERMITS - 1) + 1;
    let (jobs, ended) = worker::start(Arc::clone(&generator))?;
    let (grace, client_timeout) = (options.grace, options.client_timeout);
    let max_connections = options.max_connections.min(Semaphore::MAX_PERMITS);
    let permits = Arc::new(Semaphore::new(permits));
    let started = response::now();
    let app = AppState { generator, options, jobs, permits, server_state: server_state.clone(), started };
    let router = routes::router(Arc::new(app));

    let mut connections = JoinSet::new();
    let acceptor = Acceptor { listener, router, client_timeout, max_connections, server_state };
    acceptor.run(&mut connections, shutdown).await;
    // Closes the listener.
    drop(acceptor);
    let _ = state_sender.send(ServerState::Draining);
    if timeout(grace, join_all(&mut connections)).await.is_err() {
        let _ = state_sender.send(ServerState::Aborting);
        let _ = timeout(ABORT_TIMEOUT, join_all(&mut connections)).await;
    }
    connections.shutdown().await;
    let _ = timeout(WORKER_TIMEOUT, ended).await;
    Ok(())
}

/// Creates a runtime and a listener, and serves requests until `shutdown`
/// completes. Port 0 is any free port; `on_ready` gets the address once
/// connections are accepted.
pub fn run(
    address: &str,
    generator: TextGenerator,
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
        serve(listener, generator, options, shutdown).await
    });
    // Parsing a request cannot be cancelled.
    runtime.shutdown_timeout(ABORT_TIMEOUT);
    result
}

/// Accepts connections.
struct Acceptor {
    listener: TcpListener,
    router: Router,
    client_timeout: Duration,
    max_connections: usize,
    server_state: watch::Receiver<ServerState>,
}

impl Acceptor {
    async fn run(&self, connections: &mut JoinSet<()>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                Some(_) = connections.join_next() => {}
                stream = self.next(), if connections.len() < self.max_connections => {
                    let Ok(stream) = stream else { continue };
                    let served =
                        serve_connection(stream, self.router.clone(), self.client_timeout, self.server_state.clone());
                    connections.spawn(served);
                }
            }
        }
    }

    async fn next(&self) -> io::Result<TcpStream> {
        match self.listener.accept().await {
            Ok((stream, _)) => Ok(stream),
            Err(error) => {
                sleep(ACCEPT_RETRY).await;
                Err(error)
            }
        }
    }
}

async fn join_all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

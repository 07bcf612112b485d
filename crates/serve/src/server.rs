//! Accepting connections and shutting down.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use weightloom_hub::TextGenerator;

use crate::access::Access;
use crate::activity::{Activity, ConnectionClass};
use crate::admission::Admission;
use crate::connection::{ConnectionInfo, serve_connection};
use crate::connection_table::ConnectionTable;
use crate::error::ServeError;
use crate::events::ServerState;
use crate::options::ServeOptions;
use crate::request::Limits;
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
    let failed = |error: io::Error| ServeError::Runtime { message: error.to_string() };
    let address = listener.local_addr().map_err(failed)?;
    let generator = Arc::new(generator);
    let (jobs, ended) = worker::start(Arc::clone(&generator))?;
    let (grace, client_timeout) = (options.grace, options.client_timeout);
    let table = ConnectionTable::new(options.max_connections, options.reserved_connections);
    let app = AppState {
        limits: Limits::new(&generator, &options),
        admission: Admission::new(&options),
        access: Access::new(address, &options),
        generator,
        options,
        jobs,
        server_state: server_state.clone(),
        started: response::now(),
    };
    let router = routes::router(Arc::new(app));

    let mut connections = JoinSet::new();
    let mut acceptor = Acceptor { listener, router, client_timeout, table, server_state };
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
    table: ConnectionTable,
    server_state: watch::Receiver<ServerState>,
}

impl Acceptor {
    /// Accepts connections at all times: idle ones make room, so that no number of
    /// them keeps a client or a health check out.
    async fn run(&mut self, connections: &mut JoinSet<()>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                Some(ended) = connections.join_next_with_id() => {
                    self.table.remove(ended.map_or_else(|error| error.id(), |(id, ())| id));
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        self.serve(stream, connections);
                        // Before the next one, so that a burst does not outrun its requests.
                        yield_now().await;
                    }
                    Err(_) => {
                        self.table.close_idle(ConnectionClass::Regular, 0);
                        sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
    }

    fn serve(&mut self, stream: TcpStream, connections: &mut JoinSet<()>) {
        let class = self.table.make_room();
        let activity = Arc::new(Activity::new());
        let info = ConnectionInfo { class, activity: Arc::clone(&activity) };
        let (router, server_state) = (self.router.clone(), self.server_state.clone());
        let served = serve_connection(stream, router, info, self.client_timeout, server_state);
        self.table.insert(connections.spawn(served), class, activity);
    }
}

async fn join_all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

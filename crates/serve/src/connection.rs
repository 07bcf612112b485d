//! A client connection.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use crate::activity::{Activity, ConnectionClass};
use crate::events::ServerState;

/// Limit for a request's head, and for what is read ahead of a body.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// The time for the head of a health check when all other connections are taken.
const RESERVED_TIMEOUT: Duration = Duration::from_secs(2);

/// What a connection is, as its requests see it.
#[derive(Clone)]
pub(crate) struct ConnectionInfo {
    pub(crate) class: ConnectionClass,
    pub(crate) activity: Arc<Activity>,
}

/// Serves a connection until either side closes it.
pub(crate) async fn serve_connection(
    stream: TcpStream,
    router: Router,
    info: ConnectionInfo,
    timeout: Duration,
    mut server_state: watch::Receiver<ServerState>,
) {
    // Send the chunks of a stream at once.
    let _ = stream.set_nodelay(true);
    let received = Arc::new(AtomicBool::new(false));
    let activity = Arc::clone(&info.activity);
    let received_any = Arc::clone(&received);
    let stream = WriteTimeoutStream { stream, timeout, stalled: None, received: received_any, activity };
    let head_timeout = match info.class {
        ConnectionClass::Regular => timeout,
        ConnectionClass::Reserved => timeout.min(RESERVED_TIMEOUT),
    };
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(info.class == ConnectionClass::Regular);
    let service = TowerToHyperService::new(router.layer(Extension(info)));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // A protocol error costs the client its connection and nothing else.
        _ = connection.as_mut() => return,
        _ = server_state.wait_for(|server_state| *server_state != ServerState::Running) => {}
    }
    if received.load(Ordering::Relaxed) {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// A stream that fails if the client stops reading for too long.
struct WriteTimeoutStream {
    stream: TcpStream,
    timeout: Duration,
    /// Runs while a write is blocked.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Whether the client has sent anything.
    received: Arc<AtomicBool>,
    activity: Arc<Activity>,
}

impl WriteTimeoutStream {
    /// Fails a write that stays blocked for the timeout.
    fn limit<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.activity.touch();
            self.stalled = None;
            return result;
        }
        let timeout = self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.received.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl AsyncWrite for WriteTimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.limit(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

//! Shutdown signals.

/// Completes on Ctrl-C or SIGTERM. From the first call on, these signals no
/// longer terminate the process by themselves.
pub async fn shutdown_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::pin::pin;
    use std::process::Command;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn sigterm_completes_the_future() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut shutdown_signal = pin!(shutdown_signal());
            assert!(timeout(Duration::from_millis(20), shutdown_signal.as_mut()).await.is_err());
            let status = Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status();
            assert!(status.unwrap().success());
            assert!(timeout(Duration::from_secs(20), shutdown_signal).await.is_ok());
        });
    }
}

//! When a server is to end.

/// Waits until the user or the system wants the program to end: Ctrl-C, or a
/// request to terminate. From the first call on, these no longer end the
/// program by themselves.
pub async fn interrupted() {
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
    fn a_request_to_terminate_is_heard() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut interrupted = pin!(interrupted());
            assert!(timeout(Duration::from_millis(20), interrupted.as_mut()).await.is_err());
            let told = Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status();
            assert!(told.unwrap().success());
            assert!(timeout(Duration::from_secs(20), interrupted).await.is_ok());
        });
    }
}

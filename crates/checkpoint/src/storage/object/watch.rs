//! Statuses and error codes of responses.
//!
//! The client library reports a failure as text, which may contain secrets, and
//! without its status. So every request goes through [`RecordingConnector`],
//! which records the response for the call that waits for it.

use std::cell::RefCell;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpService, ReqwestConnector,
};
use weightloom_http::{RequestError, Retryable, install_crypto_provider, retry_after};

use super::super::address::redact;
use super::super::remote_problem::RemoteProblem;

/// Limit for reading the body of an error response.
const MAX_BODY: usize = 64 << 10;

/// Limit for text from a service in a message.
const MAX_TEXT: usize = 300;

tokio::task_local! {
    /// The last response to the call that is being polled.
    static RECORDED: RefCell<Recorded>;
}

/// A recorded response.
#[derive(Clone, Debug, Default)]
struct Recorded {
    sent_to: SentTo,
    status: Option<u16>,
    code: String,
    text: String,
    retry_after: Option<Duration>,
}

/// Receiver of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SentTo {
    #[default]
    Nowhere,
    Service,
    /// The cloud's service for credentials.
    Metadata,
}

/// A failed call.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: RemoteProblem,
    /// The last status, even if it means success.
    pub(super) status: Option<u16>,
    /// The service's error code.
    pub(super) code: String,
    pub(super) message: String,
}

/// Makes a call and adds the recorded response to its error.
pub(super) async fn watch<T>(
    call: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, RequestError<Failure>> {
    let recorded = async {
        let result = call.await;
        result.map_err(|error| RECORDED.with(|recorded| request_error(&error, &recorded.borrow())))
    };
    RECORDED.scope(RefCell::default(), recorded).await
}

impl Failure {
    /// A failure that the client library reports as success.
    pub(super) fn new(fault: RemoteProblem, message: &str) -> Self {
        Self { fault, status: None, code: String::new(), message: message.to_owned() }
    }
}

fn request_error(error: &object_store::Error, recorded: &Recorded) -> RequestError<Failure> {
    let cause = || shorten(&redact(&root_cause(error).to_string()));
    let (fault, retryable, message) = match (recorded.sent_to, recorded.status) {
        // Outside the cloud this service does not exist.
        (SentTo::Metadata, _) => (RemoteProblem::NoCredentials, Retryable::No, String::new()),
        (SentTo::Service, Some(status)) if !(200..300).contains(&status) => {
            let message = match (recorded.code.as_str(), recorded.text.as_str()) {
                (code, "") => code.to_owned(),
                ("", text) => text.to_owned(),
                (code, text) => format!("{code}: {text}"),
            };
            (RemoteProblem::Status(status), retryable(status, &recorded.code), message)
        }
        (SentTo::Nowhere, _) => {
            (RemoteProblem::Settings, Retryable::No, shorten(&redact(&error.to_string())))
        }
        (SentTo::Service, _) => match transport(error) {
            Some(HttpErrorKind::Timeout) => (RemoteProblem::Timeout, Retryable::Yes, String::new()),
            Some(HttpErrorKind::Connect) => (RemoteProblem::Unreachable, Retryable::Yes, cause()),
            Some(_) => (RemoteProblem::Cut, Retryable::Yes, cause()),
            None => (RemoteProblem::Malformed, Retryable::Yes, cause()),
        },
    };
    let failure = Failure { fault, status: recorded.status, code: recorded.code.clone(), message };
    match retryable {
        Retryable::Yes => RequestError::Transient { cause: failure, retry_after: recorded.retry_after },
        Retryable::No => RequestError::Permanent(failure),
    }
}

fn retryable(status: u16, code: &str) -> Retryable {
    match code {
        // S3 sends it with status 400 if the client was too slow.
        "RequestTimeout" => Retryable::Yes,
        _ => Retryable::from_status(status),
    }
}

/// The kind of transport error, if it is one.
fn transport(error: &object_store::Error) -> Option<HttpErrorKind> {
    causes(error).find_map(|cause| cause.downcast_ref::<HttpError>()).map(HttpError::kind)
}

/// The innermost cause, whose text contains no URL.
fn root_cause(error: &object_store::Error) -> &(dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}

fn causes(error: &object_store::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |&error| error.source())
}

fn shorten(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Connects clients that record responses.
#[derive(Debug, Default)]
pub(super) struct RecordingConnector;

impl HttpConnector for RecordingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        install_crypto_provider();
        Ok(HttpClient::new(RecordingClient(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct RecordingClient(HttpClient);

type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for RecordingClient {
    fn call<'life0, 'async_trait>(&'life0 self, request: HttpRequest) -> ResponseFuture<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let sent_to = match request.uri().host() {
                Some("169.254.169.254" | "169.254.170.2" | "metadata.google.internal") => SentTo::Metadata,
                _ => SentTo::Service,
            };
            record(Recorded { sent_to, ..Recorded::default() });
            let response = self.0.execute(request).await?;
            let (parts, body) = response.into_parts();
            let status = Some(parts.status.as_u16());
            if parts.status.is_success() {
                record(Recorded { sent_to, status, ..Recorded::default() });
                return Ok(HttpResponse::from_parts(parts, body));
            }
            let retry_after = retry_after(&parts.headers);
            record(Recorded { sent_to, status, retry_after, ..Recorded::default() });
            let mut start = Vec::new();
            let mut stream = body.bytes_stream();
            // The status is enough if the body is cut off.
            while let Ok(Some(bytes)) = stream.try_next().await {
                let room = MAX_BODY - start.len();
                start.extend_from_slice(&bytes[..bytes.len().min(room)]);
                if start.len() == MAX_BODY {
                    break;
                }
            }
            let body = String::from_utf8_lossy(&start).into_owned();
            let (code, text) = (shorten(element(&body, "Code")), shorten(&redact(element(&body, "Message"))));
            record(Recorded { sent_to, status, code, text, retry_after });
            Ok(HttpResponse::from_parts(parts, body.into()))
        })
    }
}

fn record(response: Recorded) {
    // Fails outside of `watch`, where the response is not needed.
    let _ = RECORDED.try_with(|last| *last.borrow_mut() = response);
}

/// The text of the first XML element with a name, which is all that errors of
/// S3, Google and Azure need.
fn element<'a>(body: &'a str, name: &str) -> &'a str {
    let text = body.split_once(&format!("<{name}>")).map_or("", |(_, rest)| rest);
    text.split_once(&format!("</{name}>")).map_or("", |(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_message_of_a_body_are_kept() {
        let body =
            "<Error><Code>SlowDown</Code><Message>Slow</Message><AWSAccessKeyId>x</AWSAccessKeyId></Error>";
        assert_eq!((element(body, "Code"), element(body, "Message")), ("SlowDown", "Slow"));
        assert_eq!(element("<Code>cut", "Code"), "");
        assert_eq!(shorten(&"é".repeat(MAX_TEXT + 1)).chars().count(), MAX_TEXT + 1);
    }

    #[test]
    fn only_transient_statuses_are_retried() {
        for status in [408, 429, 500, 502, 503, 504] {
            assert_eq!(retryable(status, ""), Retryable::Yes, "{status}");
        }
        for status in [301, 400, 401, 403, 404, 416, 501] {
            assert_eq!(retryable(status, ""), Retryable::No, "{status}");
        }
        assert_eq!(retryable(400, "RequestTimeout"), Retryable::Yes);
    }
}

//! What a service really answered.
//!
//! The client library says that a request failed, with a text that may hold
//! secrets, but does not say with which status. So we look over its shoulder:
//! every request goes through [`Watching`], which notes the answer for the
//! call that is waiting for it.

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

use super::super::address::redact;
use super::super::remote_problem::RemoteProblem;

/// As much of the body of an answer that means no is looked at.
const MOST_BODY: usize = 64 << 10;

/// The longest text of a service that is shown.
const MOST_TEXT: usize = 300;

tokio::task_local! {
    /// The last answer to the call that is being polled.
    static ANSWER: RefCell<Answer>;
}

/// What came back.
#[derive(Clone, Debug, Default)]
struct Answer {
    asked: Asked,
    status: Option<u16>,
    code: String,
    text: String,
    wait: Option<Duration>,
}

/// Who was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asked {
    #[default]
    Nobody,
    Service,
    /// The machine's own service that gives out credentials.
    Metadata,
}

/// A call that failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: RemoteProblem,
    /// The last status, also if it was a good one.
    pub(super) status: Option<u16>,
    /// The service's word for what is wrong.
    pub(super) code: String,
    pub(super) message: String,
    /// Whether it may go well the next time.
    pub(super) outlook: Outlook,
    /// How long the service wants us to wait.
    pub(super) wait: Option<Duration>,
}

/// Whether it may go well the next time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    Hopeful,
    Hopeless,
}

/// Makes a call and notes what is answered.
pub(super) async fn watch<T>(
    call: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, Failure> {
    let noted = async {
        let result = call.await;
        result.map_err(|error| ANSWER.with(|answer| Failure::new(&error, &answer.borrow())))
    };
    ANSWER.scope(RefCell::default(), noted).await
}

impl Failure {
    /// A failure that the client library does not see as one.
    pub(super) fn of(fault: RemoteProblem, message: &str) -> Self {
        Self {
            fault,
            status: None,
            code: String::new(),
            message: message.to_owned(),
            outlook: Outlook::Hopeful,
            wait: None,
        }
    }

    fn new(error: &object_store::Error, answer: &Answer) -> Self {
        let (fault, outlook, message) = match (answer.asked, answer.status) {
            // Off the cloud nobody is there, however often one asks.
            (Asked::Metadata, _) => (RemoteProblem::NoCredentials, Outlook::Hopeless, String::new()),
            (Asked::Service, Some(status)) if !(200..300).contains(&status) => {
                let message = match (answer.code.as_str(), answer.text.as_str()) {
                    (code, "") => code.to_owned(),
                    ("", text) => text.to_owned(),
                    (code, text) => format!("{code}: {text}"),
                };
                (RemoteProblem::Status(status), outlook(status, &answer.code), message)
            }
            (Asked::Nobody, _) => {
                (RemoteProblem::Settings, Outlook::Hopeless, shorten(&redact(&error.to_string())))
            }
            (Asked::Service, _) => {
                let deepest = shorten(&redact(&deepest(error).to_string()));
                match transport(error) {
                    Some(HttpErrorKind::Timeout) => (RemoteProblem::Timeout, Outlook::Hopeful, String::new()),
                    Some(HttpErrorKind::Connect) => (RemoteProblem::Unreachable, Outlook::Hopeful, deepest),
                    Some(_) => (RemoteProblem::Cut, Outlook::Hopeful, deepest),
                    None => (RemoteProblem::Malformed, Outlook::Hopeful, deepest),
                }
            }
        };
        Self { fault, status: answer.status, code: answer.code.clone(), message, outlook, wait: answer.wait }
    }
}

/// Whether an answer that means no may be another one the next time.
fn outlook(status: u16, code: &str) -> Outlook {
    match (status, code) {
        // S3 says 400 if we were too slow for it.
        (_, "RequestTimeout") | (408 | 429, _) => Outlook::Hopeful,
        (501 | 505, _) => Outlook::Hopeless,
        (500.., _) => Outlook::Hopeful,
        _ => Outlook::Hopeless,
    }
}

/// The kind of transport error, if it is one.
fn transport(error: &object_store::Error) -> Option<HttpErrorKind> {
    causes(error).find_map(|cause| cause.downcast_ref::<HttpError>()).map(HttpError::kind)
}

/// The first cause, whose text names no URL.
fn deepest(error: &object_store::Error) -> &(dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}

fn causes(error: &object_store::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |&error| error.source())
}

fn shorten(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(MOST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Makes clients that note what is answered.
#[derive(Debug, Default)]
pub(super) struct Watching;

impl HttpConnector for Watching {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // TLS needs to be told which cryptography to use, once per process. If
        // the program has told it, that stands.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(HttpClient::new(WatchedClient(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct WatchedClient(HttpClient);

type Answered<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for WatchedClient {
    fn call<'life0, 'async_trait>(&'life0 self, request: HttpRequest) -> Answered<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let asked = match request.uri().host() {
                Some("169.254.169.254" | "169.254.170.2" | "metadata.google.internal") => Asked::Metadata,
                _ => Asked::Service,
            };
            note(Answer { asked, ..Answer::default() });
            let response = self.0.execute(request).await?;
            let (parts, body) = response.into_parts();
            let status = Some(parts.status.as_u16());
            if parts.status.is_success() {
                note(Answer { asked, status, ..Answer::default() });
                return Ok(HttpResponse::from_parts(parts, body));
            }
            let wait = parts.headers.get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
            let wait = wait.map(Duration::from_secs);
            note(Answer { asked, status, wait, ..Answer::default() });
            let mut start = Vec::new();
            let mut stream = body.bytes_stream();
            // The status says enough if the body breaks off.
            while let Ok(Some(bytes)) = stream.try_next().await {
                let room = MOST_BODY - start.len();
                start.extend_from_slice(&bytes[..bytes.len().min(room)]);
                if start.len() == MOST_BODY {
                    break;
                }
            }
            let body = String::from_utf8_lossy(&start).into_owned();
            let (code, text) = (shorten(element(&body, "Code")), shorten(&redact(element(&body, "Message"))));
            note(Answer { asked, status, code, text, wait });
            Ok(HttpResponse::from_parts(parts, body.into()))
        })
    }
}

fn note(answer: Answer) {
    // Outside of a watched call nobody wants to know.
    let _ = ANSWER.try_with(|last| *last.borrow_mut() = answer);
}

/// The text of the first XML element of a name: all that is wanted of errors
/// of S3, Google and Azure.
fn element<'a>(body: &'a str, name: &str) -> &'a str {
    let text = body.split_once(&format!("<{name}>")).map_or("", |(_, rest)| rest);
    text.split_once(&format!("</{name}>")).map_or("", |(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_body_only_code_and_message_are_kept() {
        let body =
            "<Error><Code>SlowDown</Code><Message>Slow</Message><AWSAccessKeyId>x</AWSAccessKeyId></Error>";
        assert_eq!((element(body, "Code"), element(body, "Message")), ("SlowDown", "Slow"));
        assert_eq!(element("<Code>cut", "Code"), "");
        assert_eq!(shorten(&"é".repeat(MOST_TEXT + 1)).chars().count(), MOST_TEXT + 1);
    }

    #[test]
    fn only_what_may_pass_is_repeated() {
        for status in [408, 429, 500, 502, 503, 504] {
            assert_eq!(outlook(status, ""), Outlook::Hopeful, "{status}");
        }
        for status in [301, 400, 401, 403, 404, 416, 501] {
            assert_eq!(outlook(status, ""), Outlook::Hopeless, "{status}");
        }
        assert_eq!(outlook(400, "RequestTimeout"), Outlook::Hopeful);
    }
}

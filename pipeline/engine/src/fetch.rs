//! Downloads over HTTP with checksums and retries; the one user of reqwest. Read [`download`]
//! first, which returns a [`Downloaded`].

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use reqwest::blocking::{Client, Response};
use reqwest::{StatusCode, Url};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::cancel::Cancel;
use crate::layout::Context;

/// The stage under which downloads report.
const STAGE: &str = "download";
/// How often a download is tried in all.
const TRIES: u32 = 3;
/// The pause before the second try; it doubles from then on.
const BACKOFF: Duration = Duration::from_millis(500);
/// A server that sends nothing for this long is taken for broken. Archives of mailing lists
/// assemble an answer for many seconds before the first byte.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes that are passed on at once.
const CHUNK: usize = 64 * 1024;
/// How often a waiting download looks for a cancellation.
const POLL: Duration = Duration::from_millis(50);
/// How often progress is told.
const TELL: Duration = Duration::from_millis(200);

/// A file that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downloaded {
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, in lower-case hexadecimal.
    pub sha256: String,
}

/// Why a file did not arrive.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The location is no URL that can be fetched.
    #[error("`{url}` cannot be fetched: {reason}; give an http:// or https:// address")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server answered with an error.
    #[error(
        "{url} answered {status} (tried {tries} times); open the address in a browser to see whether it moved"
    )]
    Status {
        /// What was asked for.
        url: String,
        /// The answer.
        status: StatusCode,
        /// How often it was asked.
        tries: u32,
    },
    /// The connection failed or broke.
    #[error(
        "cannot download {url} (tried {tries} times): {reason}; check the network, and https_proxy if there is one"
    )]
    Network {
        /// What was asked for.
        url: String,
        /// What happened.
        reason: String,
        /// How often it was tried.
        tries: u32,
    },
    /// The content is not what was promised.
    #[error(
        "{url} has the wrong content: expected sha256 {expected}, got {actual}; \
         correct the checksum, or fetch the file yourself and give its path"
    )]
    Checksum {
        /// What was asked for.
        url: String,
        /// The checksum that was given.
        expected: String,
        /// The checksum of what came.
        actual: String,
    },
    /// The file could not be written.
    #[error("cannot write {path}: {source}; make room or choose another --cache folder")]
    Write {
        /// Where to.
        path: Utf8PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The user asked to stop.
    #[error("stopped on request")]
    Cancelled,
}

/// Downloads `url` to `target` and checks its `sha256` (hexadecimal) when there is one. The target
/// appears by a rename when everything is right; one that already has the wanted checksum is left
/// alone. Connection failures, answers 408, 429 and 5xx are tried three times.
///
/// # Errors
/// When the server refuses, the network fails, the content is wrong or the disk is full.
pub fn download(
    ctx: &Context<'_>,
    url: &str,
    sha256: Option<&str>,
    target: &Utf8Path,
) -> Result<Downloaded, FetchError> {
    let address = parse(url)?;
    let expected = sha256.map(str::to_ascii_lowercase);
    if let Some(expected) = &expected
        && let Ok(present) = digest_of(target)
        && present.sha256 == *expected
    {
        return Ok(present);
    }
    ctx.stage(STAGE, url, || {
        let done = with_retries(ctx, &address, expected.as_deref(), target)?;
        let detail = format!("{:.1} MB", done.bytes as f64 / 1e6);
        Ok((done, detail))
    })
}

/// Size and SHA-256 of a file.
///
/// # Errors
/// When it cannot be read.
pub fn digest_of(path: &Utf8Path) -> io::Result<Downloaded> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Downloaded { bytes, sha256: hex(&hasher.finalize()) }),
            n => {
                hasher.update(&buffer[..n]);
                bytes += n as u64;
            }
        }
    }
}

/// One failed try.
struct Failed {
    error: FetchError,
    transient: bool,
}

impl From<FetchError> for Failed {
    fn from(error: FetchError) -> Self {
        Self { error, transient: false }
    }
}

fn parse(url: &str) -> Result<Url, FetchError> {
    let wrong = |reason: String| FetchError::Url { url: url.to_owned(), reason };
    let address = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
    match address.scheme() {
        "http" | "https" => Ok(address),
        other => Err(wrong(format!("`{other}` is not fetched here"))),
    }
}

fn with_retries(
    ctx: &Context<'_>,
    url: &Url,
    expected: Option<&str>,
    target: &Utf8Path,
) -> Result<Downloaded, FetchError> {
    let client = client(url, expected.is_some()).map_err(|error| FetchError::Network {
        url: url.to_string(),
        reason: chain(&error),
        tries: 0,
    })?;
    let mut pause = BACKOFF;
    let mut tries = 1;
    loop {
        match attempt(ctx, &client, url, expected, target, tries) {
            Ok(done) => return Ok(done),
            Err(failed) if failed.transient && tries < TRIES => {
                ctx.warn(format!("{}; trying again", failed.error));
                sleep(pause, ctx.cancel)?;
                pause *= 2;
                tries += 1;
            }
            Err(failed) => return Err(failed.error),
        }
    }
}

fn client(url: &Url, exact: bool) -> Result<Client, reqwest::Error> {
    // A second call fails because there is a provider already, which is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("kdelta/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(30))
        .timeout(SILENCE)
        // A checksum is of the file as it lies on the server; decoding would change it.
        .gzip(!exact);
    if url.host_str().is_some_and(|host| matches!(host, "127.0.0.1" | "localhost" | "[::1]")) {
        builder = builder.no_proxy();
    }
    builder.build()
}

/// A piece of the answer, as the reading thread passes it on.
type Piece = Result<Vec<u8>, Failed>;

fn attempt(
    ctx: &Context<'_>,
    client: &Client,
    url: &Url,
    expected: Option<&str>,
    target: &Utf8Path,
    tries: u32,
) -> Result<Downloaded, Failed> {
    // The request runs in a thread of its own, so that a server that says nothing does not keep a
    // cancelled run waiting: the thread is left behind and ends with its timeout.
    let (sender, receiver) = sync_channel::<Piece>(4);
    let (total_sender, total_receiver) = sync_channel::<Option<u64>>(1);
    let (client, address) = (client.clone(), url.clone());
    thread::spawn(move || {
        let sent = match request(&client, &address, tries) {
            Ok(response) => {
                let _ = total_sender.send(response.content_length());
                read(response, &sender, &address, tries)
            }
            Err(failed) => Err(failed),
        };
        if let Err(failed) = sent {
            let _ = sender.send(Err(failed));
        }
    });
    let write = |source| Failed::from(FetchError::Write { path: target.to_owned(), source });
    let folder = target.parent().filter(|parent| !parent.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(write)?;
    let mut hasher = Sha256::new();
    let (mut bytes, mut total, mut told) = (0, None, Instant::now());
    while let Some(piece) = next(&receiver, ctx.cancel)? {
        let piece = piece?;
        total = total.or_else(|| total_receiver.try_recv().ok().flatten());
        hasher.update(&piece);
        file.write_all(&piece).map_err(write)?;
        bytes += piece.len() as u64;
        if told.elapsed() >= TELL {
            ctx.progress(STAGE, bytes, total, url.as_str());
            told = Instant::now();
        }
    }
    ctx.progress(STAGE, bytes, total.or(Some(bytes)), url.as_str());
    let sha256 = hex(&hasher.finalize());
    if let Some(expected) = expected
        && expected != sha256
    {
        let error =
            FetchError::Checksum { url: url.to_string(), expected: expected.to_owned(), actual: sha256 };
        return Err(error.into());
    }
    file.as_file().sync_all().map_err(write)?;
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).map_err(write)?;
    file.persist(target).map_err(|error| write(error.error))?;
    Ok(Downloaded { bytes, sha256 })
}

fn request(client: &Client, url: &Url, tries: u32) -> Result<Response, Failed> {
    let response = client.get(url.clone()).send().map_err(|error| Failed {
        transient: !error.is_builder() && !error.is_redirect(),
        error: FetchError::Network { url: url.to_string(), reason: chain(&error), tries },
    })?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let transient = status.is_server_error()
        || status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT;
    Err(Failed { error: FetchError::Status { url: url.to_string(), status, tries }, transient })
}

/// Passes the body on, piece by piece; ends early when nobody listens any more.
fn read(mut response: Response, sender: &SyncSender<Piece>, url: &Url, tries: u32) -> Result<(), Failed> {
    loop {
        let mut piece = vec![0; CHUNK];
        match response.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                piece.truncate(n);
                if sender.send(Ok(piece)).is_err() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let reason = format!("the answer broke off: {}", chain(&error));
                let error = FetchError::Network { url: url.to_string(), reason, tries };
                return Err(Failed { error, transient: true });
            }
        }
    }
}

/// The next piece, or `None` at the end.
fn next(receiver: &Receiver<Piece>, cancel: &Cancel) -> Result<Option<Piece>, FetchError> {
    loop {
        if cancel.is_requested() {
            return Err(FetchError::Cancelled);
        }
        match receiver.recv_timeout(POLL) {
            Ok(piece) => return Ok(Some(piece)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

fn sleep(time: Duration, cancel: &Cancel) -> Result<(), FetchError> {
    let started = Instant::now();
    while started.elapsed() < time {
        if cancel.is_requested() {
            return Err(FetchError::Cancelled);
        }
        thread::sleep(POLL.min(time));
    }
    Ok(())
}

/// An error and its causes in one line; reqwest keeps the interesting part in the causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            let _ = write!(text, ": {inner_text}");
        }
        cause = inner.source();
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::event::Silent;
    use crate::layout::Cache;

    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    /// Serves one canned answer for each connection and says how many were made.
    fn serve(answers: Vec<&'static str>) -> (String, thread::JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/file", listener.local_addr().expect("address"));
        let server = thread::spawn(move || {
            let mut served = 0;
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                    request.push(byte[0]);
                }
                stream.write_all(answer.as_bytes()).expect("answer");
                served += 1;
            }
            served
        });
        (url, server)
    }

    fn check(
        answers: Vec<&'static str>,
        sha256: Option<&str>,
    ) -> (Result<Downloaded, FetchError>, Option<Vec<u8>>) {
        let folder = tempfile::tempdir().expect("folder");
        let root = Utf8Path::from_path(folder.path()).expect("UTF-8");
        let cache = Cache::open(root).expect("cache");
        let cancel = Cancel::default();
        let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
        let target = cache.downloads().join("file");
        let expected = answers.len();
        let (url, server) = serve(answers);
        let result = download(&ctx, &url, sha256, &target);
        assert_eq!(server.join().expect("server"), expected);
        assert!(
            fs::read_dir(cache.downloads()).expect("folder").count() <= 1,
            "a temporary file was left behind"
        );
        (result, fs::read(&target).ok())
    }

    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    const GONE: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    const SHORT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\nConnection: close\r\n\r\nhello";

    #[test]
    fn a_file_arrives_with_its_checksum() {
        let (result, content) = check(vec![OK], Some(HELLO));
        assert_eq!(result.expect("arrives"), Downloaded { bytes: 5, sha256: HELLO.to_owned() });
        assert_eq!(content.as_deref(), Some(&b"hello"[..]));
    }

    #[test]
    fn a_busy_server_is_asked_again() {
        let (result, content) = check(vec![BUSY, OK], None);
        result.expect("arrives at the second try");
        assert_eq!(content.as_deref(), Some(&b"hello"[..]));
    }

    #[test]
    fn a_missing_file_is_asked_for_once() {
        let (result, content) = check(vec![GONE], None);
        let text = result.expect_err("missing").to_string();
        assert!(text.contains("404") && text.contains("tried 1 times"), "{text}");
        assert_eq!(content, None);
    }

    #[test]
    fn a_wrong_checksum_shows_both_and_leaves_no_file() {
        let wrong = "0".repeat(64);
        let (result, content) = check(vec![OK], Some(&wrong));
        let text = result.expect_err("wrong").to_string();
        assert!(text.contains(&wrong) && text.contains(HELLO), "{text}");
        assert_eq!(content, None);
    }

    #[test]
    fn an_answer_that_breaks_off_is_tried_three_times_and_never_kept() {
        let (result, content) = check(vec![SHORT, SHORT, SHORT], None);
        let text = result.expect_err("short").to_string();
        assert!(text.contains("broke off") && text.contains("tried 3 times"), "{text}");
        assert_eq!(content, None);
    }

    #[test]
    fn a_present_file_with_the_checksum_is_not_fetched_again() {
        let folder = tempfile::tempdir().expect("folder");
        let root = Utf8Path::from_path(folder.path()).expect("UTF-8");
        let cache = Cache::open(root).expect("cache");
        let cancel = Cancel::default();
        let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
        let target = cache.downloads().join("file");
        fs::write(&target, "hello").expect("write");
        download(&ctx, "http://127.0.0.1:9/file", Some(HELLO), &target).expect("present");
    }

    #[test]
    fn only_http_is_fetched() {
        let error = parse("file:///etc/passwd").expect_err("refused");
        assert!(error.to_string().contains("http://"), "{error}");
    }
}

//! Messages about failed requests: the reason, and what to try. They contain no credentials.

use std::error::Error as _;

use object_store::Error;

use super::client::{TIMEOUT, timeout};
use super::{Kind, Location};
use crate::failure::one_line;

/// The shortest value of a variable that is looked for in messages. Shorter values are part of usual words.
const SHORTEST_SECRET: usize = 8;

/// Where machines of a cloud find their credentials.
const METADATA: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];

/// Explains why a request about `location` failed. The text follows "cannot read …: " or the like.
pub(super) fn explain(error: &Error, location: &Location) -> String {
    let kind = location.kind().unwrap_or(Kind::Web);
    let text = whole(error);
    let answer = answer(&text).map_or(String::new(), |answer| format!(" ({answer})"));
    let is_status = |status: &str| text.contains(&format!("status code: {status}"));
    let is_missing = matches!(error, Error::NotFound { .. }) || is_status("404");
    let is_denied = matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. });
    // Without credentials, they are asked for at the address at which machines of a cloud find theirs.
    let is_anonymous = METADATA.iter().any(|address| text.contains(address));
    let explained = if is_anonymous {
        format!("no credentials were found; {}", credentials(kind))
    } else if is_missing {
        missing(&text, &answer, location, kind)
    } else if is_denied || is_status("401") || is_status("403") {
        format!("access was denied{answer}; {}", credentials(kind))
    } else if matches!(error, Error::InvalidPath { .. }) {
        format!("{} is not the name of an object: {}; rename it", location.key, innermost(error))
    } else {
        other(error, &text, location, kind)
    };
    without_secrets(&one_line(&explained))
}

/// Explains why the settings of a store cannot be used.
pub(super) fn explain_settings(error: &Error, location: &Location) -> String {
    let advice = match location.kind() {
        None | Some(Kind::Web) => "check the address",
        Some(kind) => credentials(kind),
    };
    without_secrets(&one_line(&format!("{}; {advice}", innermost(error))))
}

/// Explains what is missing. Some answers do not tell whether the bucket is.
fn missing(text: &str, answer: &str, location: &Location, kind: Kind) -> String {
    let container = kind.container();
    if text.contains("NoSuchBucket") || text.contains("ContainerNotFound") {
        format!("there is no {container} {}; check its name{}", location.authority, endpoint(kind))
    } else if kind == Kind::Web {
        format!("the server has no such file{answer}; check the address")
    } else {
        format!(
            "there is no such object, or no such {container}; check the name, and end the name of a folder with /"
        )
    }
}

/// Explains errors that have no kind of their own.
fn other(error: &Error, text: &str, location: &Location, kind: Kind) -> String {
    if text.contains("non-partial response") || text.contains("Content-Range header not present") {
        return "the server cannot send parts of a file; download the whole file first".into();
    }
    if text.contains("Requested ") && text.contains(", got ") {
        return "the server sent another range of bytes than the requested one; try again, or download the whole file first".into();
    }
    if text.contains("redirect without LOCATION") {
        return "the bucket is in another region; set AWS_REGION".into();
    }
    if text.contains("scheme is not allowed") || text.contains("builder error") {
        let variable = match kind {
            Kind::S3 => "AWS_ALLOW_HTTP=true",
            Kind::Google => "GOOGLE_ALLOW_HTTP=true",
            _ => "AZURE_ALLOW_HTTP=true",
        };
        return format!(
            "the address of the store cannot be used; if it is http://, set {variable}"
        );
    }
    if let Some(status) = answer(text) {
        return format!("the server answered {status}; try again later{}", endpoint(kind));
    }
    if text.contains("timed out") {
        return too_slow(kind);
    }
    let why = innermost(error);
    match text.contains("error sending request") || text.contains("connect") {
        true => {
            let server = if kind == Kind::Web { &*location.authority } else { "the store" };
            format!("cannot talk to {server} ({why}); check the network{}", endpoint(kind))
        }
        false => format!("the request failed ({why}); try again later{}", endpoint(kind)),
    }
}

/// The message about a store that does not answer in time.
pub(super) fn too_slow(kind: Kind) -> String {
    format!(
        "no answer within {} s; check the network{}, or set {TIMEOUT} to a larger number of seconds",
        timeout().as_secs(),
        endpoint(kind)
    )
}

/// Names the variables that can lead to another server.
fn endpoint(kind: Kind) -> &'static str {
    match kind {
        Kind::S3 => ", and check AWS_ENDPOINT_URL and AWS_REGION if they are set",
        Kind::Google => ", and check GOOGLE_BASE_URL if it is set",
        Kind::Azure => ", and check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT",
        Kind::Web => "",
    }
}

/// Says which variables grant access.
fn credentials(kind: Kind) -> &'static str {
    match kind {
        Kind::S3 => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) of a user who may do this, or AWS_SKIP_SIGNATURE=true for public buckets"
        }
        Kind::Google => {
            "set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT to the key file of an account that may do this, or GOOGLE_SKIP_SIGNATURE=true for public buckets"
        }
        Kind::Azure => {
            "set AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or AZURE_SKIP_SIGNATURE=true for public containers"
        }
        Kind::Web => "use an address that needs no login",
    }
}

/// Returns the text of an error and of all its causes.
fn whole(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

fn innermost(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    without_queries(&cause.to_string())
}

/// Returns the status of the answer and the store's code for the error. The rest of an answer may contain what
/// was signed.
fn answer(text: &str) -> Option<String> {
    let status = text.split("status code: ").nth(1)?;
    let status: String =
        status.chars().take_while(|c| c.is_ascii_alphanumeric() || " -'".contains(*c)).collect();
    let code = text.split("<Code>").nth(1).and_then(|rest| rest.split('<').next());
    let code =
        code.filter(|code| code.len() < 60 && code.chars().all(|c| c.is_ascii_alphanumeric()));
    let status = status.trim();
    Some(code.map_or(status.to_string(), |code| format!("{status}, {code}")))
}

/// Cuts off what follows a question mark in URLs. It may be a signature.
fn without_queries(text: &str) -> String {
    let words = text.split_inclusive([' ', '"', '\'', ')', '>']);
    words
        .map(|word| match word.split_once('?') {
            Some((start, query)) if start.contains("://") => {
                let end = query.chars().next_back().filter(|c| " \"')>".contains(*c));
                end.map_or(start.to_string(), |end| format!("{start}{end}"))
            }
            _ => word.to_string(),
        })
        .collect()
}

/// Replaces the values of variables that hold credentials.
fn without_secrets(text: &str) -> String {
    let is_secret = |name: &str| {
        ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|start| name.starts_with(start))
            && ["KEY", "SECRET", "TOKEN", "PASSWORD", "CREDENTIAL", "SAS"]
                .iter()
                .any(|part| name.contains(part))
    };
    // Other variables may be no text.
    let variables = std::env::vars_os();
    let variables =
        variables.filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
    let secrets = variables.filter(|(name, value)| {
        is_secret(&name.to_ascii_uppercase()) && value.len() >= SHORTEST_SECRET
    });
    secrets.fold(text.to_string(), |text, (_, value)| text.replace(&value, "…"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_cut_off() {
        let text = "request for url (http://h/a?sig=secret) failed, why?";
        assert_eq!(without_queries(text), "request for url (http://h/a) failed, why?");
        assert_eq!(without_queries("https://h/x?a=b"), "https://h/x");
    }

    #[test]
    fn answers_are_reduced_to_their_codes() {
        let text = "non-2xx status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIA</AWSAccessKeyId>";
        assert_eq!(answer(text).as_deref(), Some("403 Forbidden, SignatureDoesNotMatch"));
        assert_eq!(answer("no status"), None);
    }
}

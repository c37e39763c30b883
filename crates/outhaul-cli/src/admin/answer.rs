//! What is answered.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use outhaul_metrics::Page;
use outhaul_relay::watch::{Standing, Watch};
use serde_json::{Value, json};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// The exposition format of Prometheus.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const HELP: &str = "outhaul\n\n/live     200 while the engine turns, else 503: only a restart helps\n\
    /ready    200 while all moves that should, else 503 with what does not and why\n\
    /metrics  numbers, for Prometheus\n";

pub(super) fn answer<B>(request: &Request<B>, watches: &[Watch]) -> Response<Full<Bytes>> {
    let (method, path) = (request.method(), request.uri().path());
    let known = ["/", "/live", "/ready", "/metrics"].contains(&path);
    if !known {
        return text(StatusCode::NOT_FOUND, format!("there is no {path:.100}\n\n{HELP}"));
    }
    if method != Method::GET && method != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD only\n".into());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/live" => live(watches),
        "/ready" => ready(watches),
        "/metrics" => metrics(watches),
        _ => text(StatusCode::OK, HELP.into()),
    }
}

fn live(watches: &[Watch]) -> Response<Full<Bytes>> {
    let hung: Vec<String> = watches.iter().filter(|w| !w.is_alive()).map(|w| w.standing().outbox).collect();
    let body = json!({ "live": hung.is_empty(), "hung": hung });
    of(status(hung.is_empty()), JSON, format!("{body}\n"))
}

fn ready(watches: &[Watch]) -> Response<Full<Bytes>> {
    let all: Vec<Standing> = watches.iter().map(Watch::standing).collect();
    let ready = all.iter().all(|s| s.stalls.is_empty());
    let outboxes: Vec<Value> = all
        .iter()
        .map(|s| {
            let stalls: Vec<Value> = s
                .stalls
                .iter()
                .map(|stall| {
                    json!({ "part": stall.part, "seconds": stall.age.as_secs(), "code": stall.code, "why": stall.why })
                })
                .collect();
            let ready = stalls.is_empty();
            json!({ "outbox": s.outbox, "ready": ready, "shards": s.shards, "stalls": stalls, "troubles": s.troubles })
        })
        .collect();
    of(status(ready), JSON, format!("{}\n", json!({ "ready": ready, "outboxes": outboxes })))
}

fn metrics(watches: &[Watch]) -> Response<Full<Bytes>> {
    let mut page = Page::default();
    for watch in watches {
        watch.write(&mut page);
    }
    of(StatusCode::OK, METRICS, page.finish())
}

const fn status(fine: bool) -> StatusCode {
    if fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    of(status, TEXT, body)
}

fn of(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

//! Routes that describe themselves: the types of a handler are both what it runs on and what the API document says.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::input::{BodyLimits, Described, Input, Taken};
use super::refusal::{Code, ErrorBody, Refusal};

/// One row of the table of routes.
pub(super) struct Route {
    method: Method,
    path: &'static str,
    summary: &'static str,
    name: &'static str,
    describe: fn(&mut SchemaGenerator) -> Value,
    router: MethodRouter<Arc<Context>>,
}

/// What a handler answers.
pub(super) trait Output: Send + 'static {
    /// The responses of the operation, by status.
    fn describe(schemas: &mut SchemaGenerator) -> Map<String, Value>;
    fn respond(self) -> Response<Body>;
}

/// A JSON document with status 200.
#[derive(Debug)]
pub(super) struct Document<T>(pub(super) T);

/// What was submitted: 201, or 200 when it was there already.
#[derive(Debug)]
pub(super) enum Created<T> {
    New(T),
    Known(T),
}

/// What was asked: 202, or 200 when there was nothing to do.
#[derive(Debug)]
pub(super) enum Accepted<T> {
    Asked(T),
    Noop(T),
}

/// Success without words.
#[derive(Debug)]
pub(super) struct Nothing;

/// Bytes of another type than JSON.
#[derive(Debug)]
pub(super) struct Raw(pub(super) Response<Body>);

/// A page, or a stream.
#[derive(Debug)]
pub(super) enum PageOrStream<T> {
    Page(T),
    Stream(Response<Body>),
}

/// A JSON document with a tag, or that it is as before.
#[derive(Debug)]
pub(super) enum Tagged<T> {
    Document {
        document: T,
        etag: String,
    },
    /// `is_over`: it will not change any more.
    Unchanged {
        etag: Option<String>,
        is_over: bool,
    },
}

/// A route that reads.
pub(super) fn get<I, O, H, F>(path: &'static str, summary: &'static str, handler: H) -> Route
where
    I: Input,
    O: Output,
    H: Fn(Arc<Context>, I) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<O, Refusal>> + Send + 'static,
{
    route(Method::GET, MethodFilter::GET, path, summary, handler)
}

/// A route that changes something.
pub(super) fn post<I, O, H, F>(path: &'static str, summary: &'static str, handler: H) -> Route
where
    I: Input,
    O: Output,
    H: Fn(Arc<Context>, I) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<O, Refusal>> + Send + 'static,
{
    route(Method::POST, MethodFilter::POST, path, summary, handler)
}

/// A route that removes something.
pub(super) fn delete<I, O, H, F>(path: &'static str, summary: &'static str, handler: H) -> Route
where
    I: Input,
    O: Output,
    H: Fn(Arc<Context>, I) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<O, Refusal>> + Send + 'static,
{
    route(Method::DELETE, MethodFilter::DELETE, path, summary, handler)
}

fn route<I, O, H, F>(
    method: Method,
    filter: MethodFilter,
    path: &'static str,
    summary: &'static str,
    handler: H,
) -> Route
where
    I: Input,
    O: Output,
    H: Fn(Arc<Context>, I) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<O, Refusal>> + Send + 'static,
{
    let name = std::any::type_name::<H>().rsplit("::").next().unwrap_or_default();
    let serve = move |context: axum::extract::State<Arc<Context>>, request: Request| {
        let (handler, context) = (handler.clone(), context.0);
        async move {
            let request_id = RequestName::of(&request);
            let settings = context.settings();
            let limits = BodyLimits { bytes: settings.max_body_bytes, time: settings.body_timeout };
            let mut taken = match Taken::read(request, limits).await {
                Ok(taken) => taken,
                Err(refusal) => return refusal.unread(&request_id),
            };
            let answer = async {
                let input = I::take(&mut taken)?;
                handler(Arc::clone(&context), input).await
            };
            match answer.await {
                Ok(output) => output.respond(),
                Err(refusal) => refusal.response(&request_id),
            }
        }
    };
    Route { method, path, summary, name, describe: operation::<I, O>, router: on(filter, serve) }
}

/// The id of a request, given to it before it is routed.
#[derive(Debug, Clone)]
pub(super) struct RequestName(pub(super) String);

impl RequestName {
    pub(super) fn of(request: &Request) -> String {
        request.extensions().get::<Self>().map(|name| name.0.clone()).unwrap_or_default()
    }
}

/// The routes as a router, and their document.
pub(super) fn router(routes: Vec<Route>) -> (Router<Arc<Context>>, Value) {
    let document = document(&routes);
    let mut router = Router::new();
    for route in routes {
        // The name of a file may have a directory.
        router = router.route(&route.path.replace("{name}", "{*name}"), route.router);
    }
    let router = router
        .fallback(|request: Request| async move {
            let message = format!("there is no route {}", request.uri().path());
            Refusal::new(Code::RouteNotFound, message).unread(&RequestName::of(&request))
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let message = format!("{} is not possible on {}", request.method(), request.uri().path());
            Refusal::new(Code::MethodNotAllowed, message).unread(&RequestName::of(&request))
        });
    (router, document)
}

/// The OpenAPI document of the routes.
fn document(routes: &[Route]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let error = schemas.subschema_for::<ErrorBody>();
    let mut paths = Map::new();
    for route in routes {
        let mut operation = (route.describe)(&mut schemas);
        if let Some(fields) = operation.as_object_mut() {
            fields.insert("operationId".into(), json!(route.name));
            fields.insert("summary".into(), json!(route.summary));
            if let Some(responses) = fields.get_mut("responses").and_then(Value::as_object_mut) {
                let content = json!({"application/json": {"schema": error}});
                responses.insert("default".into(), json!({"description": "A refusal.", "content": content}));
            }
        }
        let methods = paths.entry(route.path.to_owned()).or_insert_with(|| json!({}));
        if let Some(methods) = methods.as_object_mut() {
            methods.insert(route.method.as_str().to_lowercase(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "synth-optimizers service",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A queue of optimizer runs: submit, steer, watch, and take the results.",
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas.take_definitions(true),
        },
    })
}

fn operation<I: Input, O: Output>(schemas: &mut SchemaGenerator) -> Value {
    let mut described = Described { schemas, parameters: Vec::new(), body: None };
    I::describe(&mut described);
    let Described { parameters, body, .. } = described;
    let mut operation = json!({"parameters": parameters, "responses": O::describe(schemas)});
    if let (Some(operation), Some(body)) = (operation.as_object_mut(), body) {
        operation.insert("requestBody".into(), body);
    }
    operation
}

fn json_response<T: JsonSchema>(schemas: &mut SchemaGenerator, description: &str) -> Value {
    let schema = schemas.subschema_for::<T>();
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn written<T: Serialize>(status: StatusCode, document: &T) -> Response<Body> {
    let Ok(text) = serde_json::to_vec(document) else {
        return Refusal::new(Code::Internal, "the answer cannot be written as JSON").response("");
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl<T: Serialize + JsonSchema + Send + 'static> Output for Document<T> {
    fn describe(schemas: &mut SchemaGenerator) -> Map<String, Value> {
        Map::from_iter([("200".to_owned(), json_response::<T>(schemas, "The document."))])
    }

    fn respond(self) -> Response<Body> {
        written(StatusCode::OK, &self.0)
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Output for Created<T> {
    fn describe(schemas: &mut SchemaGenerator) -> Map<String, Value> {
        let known = json_response::<T>(schemas, "It was stored before, by a submission with the same key and body.");
        let new = json_response::<T>(schemas, "It is stored.");
        Map::from_iter([("200".to_owned(), known), ("201".to_owned(), new)])
    }

    fn respond(self) -> Response<Body> {
        match self {
            Self::New(document) => written(StatusCode::CREATED, &document),
            Self::Known(document) => written(StatusCode::OK, &document),
        }
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Output for Accepted<T> {
    fn describe(schemas: &mut SchemaGenerator) -> Map<String, Value> {
        let noop = json_response::<T>(schemas, "There was nothing to do.");
        let asked = json_response::<T>(schemas, "It is stored, and takes effect soon.");
        Map::from_iter([("200".to_owned(), noop), ("202".to_owned(), asked)])
    }

    fn respond(self) -> Response<Body> {
        match self {
            Self::Asked(document) => written(StatusCode::ACCEPTED, &document),
            Self::Noop(document) => written(StatusCode::OK, &document),
        }
    }
}

impl Output for Nothing {
    fn describe(_: &mut SchemaGenerator) -> Map<String, Value> {
        Map::from_iter([("204".to_owned(), json!({"description": "It is gone."}))])
    }

    fn respond(self) -> Response<Body> {
        empty(StatusCode::NO_CONTENT, None)
    }
}

impl Output for Raw {
    fn describe(_: &mut SchemaGenerator) -> Map<String, Value> {
        let content = json!({"*/*": {}});
        Map::from_iter([
            ("200".to_owned(), json!({"description": "The bytes.", "content": content})),
            ("304".to_owned(), json!({"description": "Nothing is new."})),
        ])
    }

    fn respond(self) -> Response<Body> {
        self.0
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Output for PageOrStream<T> {
    fn describe(schemas: &mut SchemaGenerator) -> Map<String, Value> {
        let schema = schemas.subschema_for::<T>();
        let content = json!({"application/json": {"schema": schema}, "text/event-stream": {}});
        Map::from_iter([
            ("200".to_owned(), json!({"description": "A page, or a stream of events.", "content": content})),
            ("204".to_owned(), json!({"description": "The run is over, and nothing follows."})),
        ])
    }

    fn respond(self) -> Response<Body> {
        match self {
            Self::Page(document) => written(StatusCode::OK, &document),
            Self::Stream(response) => response,
        }
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Output for Tagged<T> {
    fn describe(schemas: &mut SchemaGenerator) -> Map<String, Value> {
        let unchanged = json!({
            "description": "Nothing is new.",
            "headers": {RUN_IS_OVER: {
                "description": "`true` when nothing new can come.", "schema": {"type": "string", "enum": ["true"]},
            }},
        });
        Map::from_iter([
            ("200".to_owned(), json_response::<T>(schemas, "The document, with an ETag.")),
            ("304".to_owned(), unchanged),
        ])
    }

    fn respond(self) -> Response<Body> {
        match self {
            Self::Document { document, etag } => {
                let mut response = written(StatusCode::OK, &document);
                if let Ok(etag) = HeaderValue::from_str(&etag) {
                    response.headers_mut().insert(header::ETAG, etag);
                }
                response
            }
            Self::Unchanged { etag, is_over } => {
                let mut response = empty(StatusCode::NOT_MODIFIED, etag.as_deref());
                if is_over {
                    response.headers_mut().insert(RUN_IS_OVER, HeaderValue::from_static("true"));
                }
                response
            }
        }
    }
}

/// Says that nothing new can come.
const RUN_IS_OVER: &str = "run-is-over";

/// An answer without a body.
pub(super) fn empty(status: StatusCode, etag: Option<&str>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    if let Some(etag) = etag.and_then(|etag| HeaderValue::from_str(etag).ok()) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
}

//! What a handler takes: path, query, header and body, each described where it is read.

use std::time::Duration;

use axum::RequestExt;
use axum::body::{Body, Bytes};
use axum::extract::{Query as AxumQuery, RawPathParams, Request};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::refusal::{Code, Refusal};

/// Something that a handler can be given, and the part of the API's description that speaks of it.
pub(super) trait Input: Sized + Send + 'static {
    fn describe(operation: &mut Described<'_>);
    fn take(request: &mut Taken) -> Result<Self, Refusal>;
}

/// The description of one operation while it is put together.
pub(super) struct Described<'a> {
    pub(super) schemas: &'a mut SchemaGenerator,
    pub(super) parameters: Vec<Value>,
    pub(super) body: Option<Value>,
}

/// A request that was read as a whole.
#[derive(Debug)]
pub(super) struct Taken {
    path: Vec<(String, String)>,
    uri: axum::http::Uri,
    headers: HeaderMap,
    body: Bytes,
}

/// How much a client may send, and how slowly.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimits {
    pub(super) bytes: usize,
    pub(super) time: Duration,
}

/// The parameters in the path.
#[derive(Debug)]
pub(super) struct Path<T>(pub(super) T);

/// The parameters after the question mark.
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

/// A JSON body. Nothing at all is the same as an empty object.
#[derive(Debug)]
pub(super) struct Json<T>(pub(super) T);

/// Whether a stream of events is wanted, and after which one: the headers `Accept` and `Last-Event-ID`.
#[derive(Debug)]
pub(super) struct StreamWish {
    pub(super) is_wanted: bool,
    pub(super) last: Option<i64>,
}

/// The header `If-None-Match`.
#[derive(Debug)]
pub(super) struct IfNoneMatch(pub(super) Option<String>);

/// The header `Idempotency-Key`.
#[derive(Debug)]
pub(super) struct IdempotencyKey(pub(super) Option<String>);

impl Taken {
    /// Reads the request, within its limits.
    pub(super) async fn read(mut request: Request, limits: BodyLimits) -> Result<Self, Refusal> {
        let path = match request.extract_parts::<RawPathParams>().await {
            Ok(found) => found.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            Err(_) => return Err(Refusal::new(Code::BadParameter, "the path is not UTF-8 text")),
        };
        let (parts, body) = request.into_parts();
        let length = header_text(&parts.headers, header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        if length.is_some_and(|length| length > limits.bytes as u64) {
            return Err(too_large(limits));
        }
        let body = read_body(body, limits).await?;
        Ok(Self { path, uri: parts.uri, headers: parts.headers, body })
    }
}

async fn read_body(body: Body, limits: BodyLimits) -> Result<Bytes, Refusal> {
    let whole = Limited::new(body, limits.bytes).collect();
    match tokio::time::timeout(limits.time, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large(limits)),
        Ok(Err(_)) => Err(Refusal::new(Code::BadRequest, "the body ended before its end")),
        Err(_) => {
            let message = format!("the body did not come within {} s", limits.time.as_secs());
            Err(Refusal::new(Code::BodyTooSlow, message))
        }
    }
}

fn too_large(limits: BodyLimits) -> Refusal {
    Refusal::new(Code::BodyTooLarge, format!("the body is larger than {} bytes", limits.bytes))
}

impl Input for () {
    fn describe(_: &mut Described<'_>) {}

    fn take(_: &mut Taken) -> Result<Self, Refusal> {
        Ok(())
    }
}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> Input for Path<T> {
    fn describe(operation: &mut Described<'_>) {
        let fields = fields::<T>(operation.schemas, "path");
        operation.parameters.extend(fields);
    }

    fn take(request: &mut Taken) -> Result<Self, Refusal> {
        let fields = request.path.iter().map(|(name, value)| (name.clone(), Value::String(value.clone()))).collect();
        read(Code::BadParameter, "the path", Value::Object(fields)).map(Self)
    }
}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> Input for Query<T> {
    fn describe(operation: &mut Described<'_>) {
        let fields = fields::<T>(operation.schemas, "query");
        operation.parameters.extend(fields);
    }

    fn take(request: &mut Taken) -> Result<Self, Refusal> {
        AxumQuery::try_from_uri(&request.uri).map(|AxumQuery(found)| Self(found)).map_err(|error| {
            let why = error.to_string();
            let why = why.strip_prefix("Failed to deserialize query string: ").unwrap_or(&why);
            Refusal::new(Code::BadParameter, format!("the query is not right: {why}"))
        })
    }
}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> Input for Json<T> {
    fn describe(operation: &mut Described<'_>) {
        let schema = operation.schemas.subschema_for::<T>();
        // Whether an empty body is enough is whether an empty object is.
        let required = serde_json::from_str::<T>("{}").is_err();
        operation.body = Some(json!({"required": required, "content": {"application/json": {"schema": schema}}}));
    }

    fn take(request: &mut Taken) -> Result<Self, Refusal> {
        let text: &[u8] = if request.body.is_empty() { b"{}" } else { &request.body };
        // First whether it is JSON at all, which has its own code.
        let value: Value = serde_json::from_slice(text)
            .map_err(|error| Refusal::new(Code::BadJson, format!("the body is not JSON: {error}")))?;
        // A list would be read as the fields of an object in their order.
        if !value.is_object() {
            return Err(Refusal::new(Code::BadRequest, "the body is not a JSON object"));
        }
        read(Code::BadRequest, "the body", value).map(Self)
    }
}

/// Reads an object; a refusal names the field.
fn read<T: DeserializeOwned>(code: Code, what: &str, value: Value) -> Result<T, Refusal> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let field = error.path().to_string();
        let error = error.into_inner();
        match field.as_str() {
            "." => Refusal::new(code, format!("{what} is not right: {error}")),
            field => Refusal::new(code, format!("{field} of {what} is not right: {error}")).about(field),
        }
    })
}

impl Input for StreamWish {
    fn describe(operation: &mut Described<'_>) {
        operation.parameters.push(json!({
            "name": "Last-Event-ID",
            "in": "header",
            "required": false,
            "description": "With `Accept: text/event-stream`: the last event that was seen.",
            "schema": {"type": "integer", "minimum": -1},
        }));
    }

    fn take(request: &mut Taken) -> Result<Self, Refusal> {
        let accepts = header_text(&request.headers, header::ACCEPT).unwrap_or_default();
        let is_wanted = accepts.split(',').any(|kind| kind.trim().starts_with("text/event-stream"));
        let last = match request.headers.get("last-event-id") {
            Some(id) => {
                let id = id.to_str().ok().and_then(|id| id.parse().ok()).filter(|id| *id >= -1);
                let refused = || Refusal::new(Code::BadParameter, "the Last-Event-ID is not the id of an event");
                Some(id.ok_or_else(refused)?)
            }
            None => None,
        };
        Ok(Self { is_wanted, last })
    }
}

impl Input for IfNoneMatch {
    fn describe(operation: &mut Described<'_>) {
        operation.parameters.push(json!({
            "name": "If-None-Match",
            "in": "header",
            "required": false,
            "description": "The ETag of what is known: the answer is 304 when it is still the same.",
            "schema": {"type": "string"},
        }));
    }

    fn take(request: &mut Taken) -> Result<Self, Refusal> {
        Ok(Self(header_text(&request.headers, header::IF_NONE_MATCH).map(str::to_owned)))
    }
}

/// Whether a list of tags has this one.
pub(super) fn names(known: &str, etag: &str) -> bool {
    known.split(',').map(|known| known.trim().trim_start_matches("W/")).any(|known| known == etag || known == "*")
}

impl Input for IdempotencyKey {
    fn describe(operation: &mut Described<'_>) {
        operation.parameters.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "required": false,
            "description": "A name for this submission: the same key with the same body gives the same run again.",
            "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[\\x21-\\x7e]+$"},
        }));
    }

    fn take(request: &mut Taken) -> Result<Self, Refusal> {
        let Some(key) = request.headers.get("idempotency-key") else { return Ok(Self(None)) };
        let is_fine =
            |key: &&str| !key.is_empty() && key.len() <= LONGEST_KEY && key.bytes().all(|byte| byte.is_ascii_graphic());
        match key.to_str().ok().filter(is_fine) {
            Some(key) => Ok(Self(Some(key.to_owned()))),
            None => {
                let message = format!("the Idempotency-Key must have 1 to {LONGEST_KEY} visible ASCII characters");
                Err(Refusal::new(Code::BadParameter, message))
            }
        }
    }
}

const LONGEST_KEY: usize = 200;

macro_rules! several {
    ($($part:ident),+) => {
        impl<$($part: Input),+> Input for ($($part,)+) {
            fn describe(operation: &mut Described<'_>) {
                $($part::describe(operation);)+
            }

            fn take(request: &mut Taken) -> Result<Self, Refusal> {
                Ok(($($part::take(request)?,)+))
            }
        }
    };
}

several!(A, B);
several!(A, B, C);

/// The value of a header, where it is text.
pub(super) fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The fields of a type as parameters.
fn fields<T: JsonSchema>(schemas: &mut SchemaGenerator, place: &str) -> Vec<Value> {
    let schema = T::json_schema(schemas).to_value();
    let required: Vec<&str> =
        schema["required"].as_array().map(|names| names.iter().filter_map(Value::as_str).collect()).unwrap_or_default();
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    let parameter = |(name, schema): (&String, &Value)| {
        let description = schema.get("description").cloned().unwrap_or_default();
        json!({
            "name": name,
            "in": place,
            "required": place == "path" || required.contains(&name.as_str()),
            "description": description,
            "schema": schema,
        })
    };
    properties.iter().map(parameter).collect()
}

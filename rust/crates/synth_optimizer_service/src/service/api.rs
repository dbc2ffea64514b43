//! Request extractors and response types of the handlers, and their OpenAPI descriptions.

use aide::OperationInput;
use aide::OperationOutput;
use aide::generate::GenContext;
use aide::openapi::{MediaType, Operation, RequestBody, Response as Described, SchemaObject, StatusCode as Status};
use aide::operation::{ParamLocation, add_parameters, parameters_from_schema, set_body};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query as AxumQuery, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::api_error::{ApiError, ErrorBody};
use crate::ServiceErrorCode;

/// Path parameters.
#[derive(Debug)]
pub(super) struct Path<T>(pub(super) T);

/// Query parameters.
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

/// Headers, by their lower-case names.
#[derive(Debug)]
pub(super) struct Headers<T>(pub(super) T);

/// A JSON body. An empty body equals an empty object.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let found = RawPathParams::from_request_parts(parts, state).await;
        let refused = ApiError::new(ServiceErrorCode::BadParameter, "the path is not UTF-8 text");
        let found = found.map_err(|error| refused.because(&error))?;
        read_texts("the path", found.iter()).map(Self)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        AxumQuery::try_from_uri(&parts.uri).map(|AxumQuery(found)| Self(found)).map_err(|error| {
            let why = error.to_string();
            let why = why.strip_prefix("Failed to deserialize query string: ").unwrap_or(&why);
            ApiError::new(ServiceErrorCode::BadParameter, format!("the query is invalid: {why}"))
        })
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Headers<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let texts = parts
            .headers
            .keys()
            .filter_map(|name| Some((name.as_str(), String::from_utf8_lossy(parts.headers.get(name)?.as_bytes()))));
        let texts: Vec<_> = texts.collect();
        read_texts("the header", texts.iter().map(|(name, text)| (*name, text.as_ref()))).map(Self)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|error| ApiError::cut_body(&error))?;
        read_body(if bytes.is_empty() { b"{}" } else { &bytes }).map(Self)
    }
}

fn read_body<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    let not_json = |error| ApiError::new(ServiceErrorCode::BadJson, format!("the body is not JSON: {error}"));
    // A body that is not JSON has its own code, which takes precedence over errors in its content.
    let checked = |refusal: ApiError| serde_json::from_slice::<Value>(text).map_or_else(not_json, |_| refusal);
    // Serde would accept a list as the fields of a struct in order.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(checked(ApiError::new(ServiceErrorCode::BadRequest, "the body is not a JSON object")));
    }
    let mut reading = serde_json::Deserializer::from_slice(text);
    let found = serde_path_to_error::deserialize(&mut reading)
        .map_err(|error| checked(wrong_field(ServiceErrorCode::BadRequest, "the body", &error)))?;
    reading.end().map_err(not_json)?;
    Ok(found)
}

fn read_texts<'a, T: DeserializeOwned>(
    what: &str,
    texts: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<T, ApiError> {
    let fields: Map<String, Value> = texts.map(|(name, text)| (name.to_owned(), text.into())).collect();
    serde_path_to_error::deserialize(Value::Object(fields))
        .map_err(|error| wrong_field(ServiceErrorCode::BadParameter, what, &error))
}

/// Returns the error for an invalid value, and names the field if there is one.
fn wrong_field(code: ServiceErrorCode, what: &str, error: &serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    let (field, why) = (error.path().to_string(), error.inner());
    match field.as_str() {
        "." => ApiError::new(code, format!("{what} is invalid: {why}")),
        field => ApiError::new(code, format!("{field} of {what} is invalid: {why}")).for_field(field),
    }
}

/// Returns the value of a header, if it is text.
pub(super) fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// A number within bounds. The bounds are part of the OpenAPI description.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounded<T, const MIN: i32, const MAX: i32>(pub(super) T);

impl<'de, T, const MIN: i32, const MAX: i32> Deserialize<'de> for Bounded<T, MIN, MAX>
where
    T: Deserialize<'de> + PartialOrd + From<i32> + std::fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(reading: D) -> Result<Self, D::Error> {
        let value = T::deserialize(reading)?;
        match value >= T::from(MIN) && value <= T::from(MAX) {
            true => Ok(Self(value)),
            false => Err(D::Error::custom(format!("{value} is not between {MIN} and {MAX}"))),
        }
    }
}

impl<T: JsonSchema, const MIN: i32, const MAX: i32> JsonSchema for Bounded<T, MIN, MAX> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(schemas: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(schemas);
        schema.insert("minimum".into(), MIN.into());
        schema.insert("maximum".into(), MAX.into());
        schema
    }
}

/// A document with `STATUS` if the request changed something, and with 200 if not.
#[derive(Debug)]
pub(super) struct ChangeResponse<const STATUS: u16, T> {
    pub(super) is_change: bool,
    pub(super) document: T,
}

/// A response with an ETag, which is 304 when the client already has the current version.
#[derive(Debug)]
pub(super) struct EtagResponse<T> {
    /// `None` for 304.
    pub(super) answer: Option<T>,
    pub(super) etag: Option<String>,
    /// Whether the run has ended, so that no newer version can follow.
    pub(super) is_terminal: bool,
}

/// A response with bytes of any media type.
#[derive(Debug)]
pub(super) struct RawResponse(pub(super) Response);

/// A page or a stream of events.
#[derive(Debug)]
pub(super) enum PageOrStream<T> {
    Page(T),
    /// A stream, or 204 if no event follows.
    Stream(Response),
}

impl<const STATUS: u16, T: Serialize> IntoResponse for ChangeResponse<STATUS, T> {
    fn into_response(self) -> Response {
        let status = if self.is_change { StatusCode::from_u16(STATUS).unwrap_or_default() } else { StatusCode::OK };
        (status, Json(self.document)).into_response()
    }
}

impl<T: IntoResponse> IntoResponse for EtagResponse<T> {
    fn into_response(self) -> Response {
        let mut response = self.answer.map_or_else(|| StatusCode::NOT_MODIFIED.into_response(), T::into_response);
        let headers = response.headers_mut();
        if self.is_terminal {
            headers.insert("run-is-terminal", HeaderValue::from_static("true"));
        }
        if let Some(etag) = self.etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
            headers.insert(header::ETAG, etag);
        }
        response
    }
}

impl IntoResponse for RawResponse {
    fn into_response(self) -> Response {
        self.0
    }
}

impl<T: Serialize> IntoResponse for PageOrStream<T> {
    fn into_response(self) -> Response {
        match self {
            Self::Page(page) => Json(page).into_response(),
            Self::Stream(response) => response,
        }
    }
}

fn parameters<T: JsonSchema>(context: &mut GenContext, operation: &mut Operation, place: ParamLocation) {
    // The schema is inlined, because no other schema refers to it.
    let schema = T::json_schema(&mut context.schema);
    let found = parameters_from_schema(context, schema, place);
    add_parameters(context, operation, found);
}

impl<T: JsonSchema> OperationInput for Path<T> {
    fn operation_input(context: &mut GenContext, operation: &mut Operation) {
        parameters::<T>(context, operation, ParamLocation::Path);
    }
}

impl<T: JsonSchema> OperationInput for Query<T> {
    fn operation_input(context: &mut GenContext, operation: &mut Operation) {
        parameters::<T>(context, operation, ParamLocation::Query);
    }
}

impl<T: JsonSchema> OperationInput for Headers<T> {
    fn operation_input(context: &mut GenContext, operation: &mut Operation) {
        parameters::<T>(context, operation, ParamLocation::Header);
    }
}

impl<T: JsonSchema + DeserializeOwned> OperationInput for Body<T> {
    fn operation_input(context: &mut GenContext, operation: &mut Operation) {
        // The body is optional if an empty object is valid.
        let required = serde_json::from_str::<T>("{}").is_err();
        let content = [json_content::<T>(context)].into_iter().collect();
        set_body(context, operation, RequestBody { content, required, ..RequestBody::default() });
    }
}

fn json_content<T: JsonSchema>(context: &mut GenContext) -> (String, MediaType) {
    let json_schema = context.schema.subschema_for::<T>();
    let schema = Some(SchemaObject { json_schema, external_docs: None, example: None });
    ("application/json".to_owned(), MediaType { schema, ..MediaType::default() })
}

type ResponseDocs = Vec<(Option<Status>, Described)>;

fn answer(
    status: u16,
    description: &str,
    content: impl IntoIterator<Item = (String, MediaType)>,
) -> (Option<Status>, Described) {
    let content = content.into_iter().collect();
    (Some(Status::Code(status)), Described { description: description.to_owned(), content, ..Described::default() })
}

impl OperationOutput for ApiError {
    type Inner = ErrorBody;

    fn inferred_responses(context: &mut GenContext, _: &mut Operation) -> ResponseDocs {
        let (_, refused) = answer(0, "A refusal.", [json_content::<ErrorBody>(context)]);
        vec![(None, refused)]
    }
}

impl<const STATUS: u16, T: JsonSchema> OperationOutput for ChangeResponse<STATUS, T> {
    type Inner = T;

    fn inferred_responses(context: &mut GenContext, _: &mut Operation) -> ResponseDocs {
        let content = json_content::<T>(context);
        vec![
            answer(200, "Nothing changed: the state already matches the request.", [content.clone()]),
            answer(STATUS, "The request is stored.", [content]),
        ]
    }
}

impl<T: OperationOutput> OperationOutput for EtagResponse<T> {
    type Inner = T::Inner;

    fn inferred_responses(context: &mut GenContext, operation: &mut Operation) -> ResponseDocs {
        let mut answers = T::inferred_responses(context, operation);
        answers.push(answer(
            304,
            "Nothing changed. The header `run-is-terminal` is `true` if the run has ended and nothing can change.",
            [],
        ));
        answers
    }
}

impl OperationOutput for RawResponse {
    type Inner = Vec<u8>;

    fn inferred_responses(_: &mut GenContext, _: &mut Operation) -> ResponseDocs {
        vec![answer(200, "The bytes.", [("*/*".to_owned(), MediaType::default())])]
    }
}

impl<T: JsonSchema> OperationOutput for PageOrStream<T> {
    type Inner = T;

    fn inferred_responses(context: &mut GenContext, _: &mut Operation) -> ResponseDocs {
        let page = json_content::<T>(context);
        vec![
            answer(
                200,
                "A page, or a stream of events.",
                [page, ("text/event-stream".to_owned(), MediaType::default())],
            ),
            answer(204, "The run has ended, and the client has every event.", []),
        ]
    }
}

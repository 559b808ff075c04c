"""The OpenAPI document, made from the contract's own descriptors and the table of routes, so that it cannot drift."""

import json
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from placewise_service.api.calls.statuses import PROBLEM_TYPE
from placewise_service.api.docs.routes import ROUTES, Route

Schema = dict[str, Any]
# Descriptors come in two implementations that share no type: those of messages, fields and enums are Any here.
MessageType = Any
FieldType = Any
EnumType = Any

_TEXT_OF: dict[str, Schema] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^\d{1,9}(\.\d{1,9})?s$", "examples": ["30s"]},
    "google.protobuf.FieldMask": {"type": "string", "pattern": r"^[a-zA-Z0-9_,.]*$"},
}
_INT32 = {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1}
_SCALARS: dict[int, Schema] = {
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_INT32: _INT32,
    # proto3 JSON writes 64-bit integers as text, since JavaScript cannot hold them.
    FieldDescriptor.TYPE_INT64: {"type": "string", "format": "int64", "pattern": r"^-?\d{1,18}$"},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "format": "uint64", "pattern": r"^\d{1,19}$"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "format": "byte"},
}
_PATH_FIELDS = {
    "cluster": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$", "example": "prod"},
    "decision_id": {"type": "string", "minLength": 1, "maxLength": 253},
    "name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$", "example": "default"},
}
_ERRORS = {
    "400": "The request breaks a rule; `metadata.field` says where.",
    "401": "No token, or a wrong one.",
    "403": "The token does not allow this.",
    "404": "No such cluster, node, bundle or decision.",
    "409": "The cluster changed under the decision; ask again.",
    "415": "The content type is not JSON's; it is asked for with an empty body, too.",
    "429": "Too many requests at once; ask again after `Retry-After`.",
    "503": "The state cannot be reached; ask again after `Retry-After`.",
    "504": "The time given was not enough.",
}
_PROBLEM: Schema = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "reason"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "reason": {"type": "string"},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


@cache
def document() -> Schema:
    """OpenAPI 3.1. The caller must not change it."""
    schemas: dict[str, Schema] = {"Problem": _PROBLEM}
    paths: dict[str, Schema] = {}
    for route in ROUTES:
        _add_message(schemas, route.rpc.request.DESCRIPTOR)
        _add_message(schemas, route.rpc.response.DESCRIPTOR)
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    paths.update(_operations_paths())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Placewise",
            "version": "1",
            "description": "Where, how and when to run a job. Bodies are proto3 JSON; snake_case names are read too.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


def _operation(route: Route) -> Schema:
    response: Schema = {"schema": _reference(route.rpc.response.DESCRIPTOR)}
    if route.example_response:
        response["example"] = route.example_response
    errors = {
        status: {"description": text, "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
        for status, text in _ERRORS.items()
        if status != "415" or route.method not in ("GET", "DELETE")
    }
    operation: Schema = {
        "operationId": route.rpc.name,
        "tags": [route.rpc.service],
        "summary": route.summary,
        "description": f"Scope: {route.rpc.scope}.",
        "parameters": [*_path_parameters(route), *_query_parameters(route), _TIMEOUT],
        "responses": {"200": {"description": "Answered.", "content": {"application/json": response}}, **errors},
    }
    if route.body:
        operation["requestBody"] = _request_body(route)
    return operation


def _request_body(route: Route) -> Schema:
    descriptor: MessageType = route.rpc.request.DESCRIPTOR
    if route.body != "*":
        descriptor = descriptor.fields_by_name[route.body].message_type
    content: Schema = {"schema": _reference(descriptor)}
    if route.example:
        content["example"] = route.example
    return {"required": True, "content": {"application/json": content}}


_TIMEOUT: Schema = {
    "name": "Placewise-Timeout-Ms",
    "in": "header",
    "required": False,
    "description": "Time the caller is willing to wait, milliseconds.",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 3_600_000},
}


def _path_parameters(route: Route) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in _PATH_FIELDS.items()
        if f"{{{name}}}" in route.path
    ]


def _query_parameters(route: Route) -> list[Schema]:
    fields = route.rpc.request.DESCRIPTOR.fields_by_name
    return [
        {"name": fields[name].camelcase_name, "in": "query", "required": False, "schema": _field(fields[name])}
        for name in route.query
    ]


def _add_message(schemas: dict[str, Schema], descriptor: MessageType) -> None:
    """The schema of a message, and of all it is made of."""
    name = _name(descriptor)
    if name in schemas or descriptor.full_name in _TEXT_OF:
        return
    schemas[name] = {"type": "object", "additionalProperties": False, "properties": {}}
    for field in descriptor.fields:
        schemas[name]["properties"][field.camelcase_name] = _property(field)
        value = field.message_type.fields_by_name["value"] if _is_map(field) else field
        if value.message_type is not None:
            _add_message(schemas, value.message_type)
        if value.enum_type is not None:
            schemas[_name(value.enum_type)] = _enum(value.enum_type)


def _property(field: FieldType) -> Schema:
    if _is_map(field):
        return {"type": "object", "additionalProperties": _field(field.message_type.fields_by_name["value"])}
    if field.is_repeated:
        return {"type": "array", "items": _field(field)}
    return _field(field)


def _field(field: FieldType) -> Schema:
    if field.message_type is not None:
        return _reference(field.message_type)
    if field.enum_type is not None:
        return {"$ref": f"#/components/schemas/{_name(field.enum_type)}"}
    return dict(_SCALARS[field.type])


def _reference(descriptor: MessageType) -> Schema:
    text = _TEXT_OF.get(descriptor.full_name)
    return dict(text) if text else {"$ref": f"#/components/schemas/{_name(descriptor)}"}


def _enum(descriptor: EnumType) -> Schema:
    return {"type": "string", "enum": [value.name for value in descriptor.values]}


def _is_map(field: FieldType) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _name(descriptor: MessageType | EnumType) -> str:
    """Nested ones carry their owner's name: JobEvent.Kind."""
    return str(descriptor.full_name).removeprefix("placewise.v1.")


def _operations_paths() -> dict[str, Schema]:
    def get(summary: str, kind: str, *failures: str) -> Schema:
        responses: Schema = {"200": {"description": summary, "content": {kind: {}}}}
        responses.update({status: {"description": _ERRORS.get(status, "Not now.")} for status in failures})
        return {"get": {"summary": summary, "tags": ["Operations"], "responses": responses}}

    return {
        "/healthz": get("The process is alive.", "application/json"),
        "/readyz": get("Questions are welcome.", "application/json", "503"),
        "/metrics": get("Prometheus metrics.", "text/plain", "401", "403"),
    }


if __name__ == "__main__":
    print(json.dumps(document(), indent=1, sort_keys=True, ensure_ascii=False))

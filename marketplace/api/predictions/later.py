"""The operations below `/v1` around predictions: responses, runs, files, batches, predictions in the background."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marketplace.api.predictions.answers import TEXT, Schema
from marketplace.api.predictions.operations import END_USER, IDEMPOTENCY, ON_BUDGET, RUN, Operation, named


def _query(name: str, text: str, schema: Schema) -> Mapping[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": schema}


def _pages(what: str) -> tuple[Mapping[str, Any], ...]:
    return (
        _query("after", f"the id of the {what} that the page before ended with", TEXT),
        _query("limit", "how many, 20 unless said otherwise", {"type": "integer", "minimum": 1, "maximum": 100}),
    )


_ORDER = _query("order", "newest first, or oldest first", {"type": "string", "enum": ["desc", "asc"]})


_RESPONSE = (named("response_id", "resp_…"),)
_FILE = (named("file_id", "file-…"),)
_BATCH = (named("batch_id", "batch_…"),)
_PREDICTION = (named("prediction_id", "pred_…"),)
_RUN = (named("run_id", "run_…"),)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        id="create_response",
        tag="responses",
        path="/v1/responses",
        text="Answer in the Responses form, with functions and text. Hosted tools are refused by name.",
        body="ResponseBody",
        answer="Response",
        streams=True,
        predicts=True,
        headers=(IDEMPOTENCY, END_USER, ON_BUDGET, RUN),
    ),
    *(
        Operation(
            id=id,
            tag="responses",
            path=path,
            method=method,
            text=text,
            answer=answer,
            parameters=parameters,
            statuses=(400, 404),
        )
        for id, path, method, text, answer, parameters in (
            (
                "get_response",
                "/v1/responses/{response_id}",
                "get",
                "Return a response that was stored.",
                "Response",
                _RESPONSE,
            ),
            (
                "delete_response",
                "/v1/responses/{response_id}",
                "delete",
                "Delete a response that was stored.",
                "Deleted",
                _RESPONSE,
            ),
            (
                "list_input_items",
                "/v1/responses/{response_id}/input_items",
                "get",
                "List what a stored response answered.",
                "ResponseItems",
                (*_RESPONSE, *_pages("item"), _ORDER),
            ),
        )
    ),
    Operation(
        id="create_run",
        tag="runs",
        path="/v1/runs",
        text="Open a run: one budget, one number of calls and one deadline over many calls.",
        body="RunTerms",
        answer="Run",
        statuses=(404,),
    ),
    Operation(
        id="list_runs_of_key",
        tag="runs",
        path="/v1/runs",
        method="get",
        text="List the runs of the key and its rotations, newest first.",
        answer="Runs",
        statuses=(400,),
        parameters=_pages("run"),
    ),
    Operation(
        id="get_run_of_key",
        tag="runs",
        path="/v1/runs/{run_id}",
        method="get",
        text="Return a run with what it spent.",
        answer="Run",
        statuses=(404,),
        parameters=_RUN,
    ),
    Operation(
        id="close_run_of_key",
        tag="runs",
        path="/v1/runs/{run_id}/close",
        text="Close a run: it takes no more calls.",
        answer="Run",
        statuses=(404,),
        parameters=_RUN,
    ),
    Operation(
        id="upload_file",
        tag="files",
        path="/v1/files",
        text="Upload JSON lines for a batch; they are read while they arrive, and stored encrypted for 30 days.",
        body="Upload",
        body_type="multipart/form-data",
        answer="File",
        statuses=(409, 507),
    ),
    Operation(
        id="list_files",
        scopes=("predict", "read"),
        tag="files",
        path="/v1/files",
        method="get",
        text="List the organization's files.",
        answer="Files",
        statuses=(400,),
        parameters=(*_pages("file"), _ORDER, _query("purpose", "of this purpose alone", TEXT)),
    ),
    Operation(
        id="get_file",
        scopes=("predict", "read"),
        tag="files",
        path="/v1/files/{file_id}",
        method="get",
        text="Return a file's description.",
        answer="File",
        statuses=(404,),
        parameters=_FILE,
    ),
    Operation(
        id="delete_file",
        tag="files",
        path="/v1/files/{file_id}",
        method="delete",
        text="Delete a file that no open batch reads.",
        answer="Deleted",
        statuses=(404, 409),
        parameters=_FILE,
    ),
    Operation(
        id="get_file_content",
        tag="files",
        path="/v1/files/{file_id}/content",
        method="get",
        text="Return a file's lines.",
        answer="JsonLines",
        answer_type="application/jsonl",
        statuses=(404,),
        parameters=_FILE,
    ),
    Operation(
        id="create_batch",
        tag="batches",
        path="/v1/batches",
        text="Start a batch: each line is a prediction of its own at the price of the class batch.",
        body="BatchBody",
        answer="Batch",
        statuses=(402, 404, 409),
        headers=(IDEMPOTENCY,),
    ),
    Operation(
        id="quote_batch",
        tag="batches",
        path="/v1/batches/quote",
        text="Say what a batch of a file would cost. Charges nothing.",
        body="BatchToQuote",
        answer="BatchQuote",
        statuses=(404,),
    ),
    Operation(
        id="list_batches",
        scopes=("predict", "read"),
        tag="batches",
        path="/v1/batches",
        method="get",
        text="List the organization's batches.",
        answer="Batches",
        statuses=(400,),
        parameters=(*_pages("batch"), _ORDER),
    ),
    Operation(
        id="get_batch",
        scopes=("predict", "read"),
        tag="batches",
        path="/v1/batches/{batch_id}",
        method="get",
        text="Return a batch with its counts and its cost so far.",
        answer="Batch",
        statuses=(404,),
        parameters=_BATCH,
    ),
    Operation(
        id="cancel_batch",
        tag="batches",
        path="/v1/batches/{batch_id}/cancel",
        text="Cancel a batch; lines that were answered stay, and are paid.",
        answer="Batch",
        statuses=(404, 409),
        parameters=_BATCH,
    ),
    Operation(
        id="create_background_prediction",
        tag="background-predictions",
        path="/v1/predictions",
        text="Make a prediction in the background.",
        body="BackgroundBody",
        answer="BackgroundPrediction",
        success=202,
        statuses=(402, 404, 409),
        headers=(IDEMPOTENCY,),
    ),
    Operation(
        id="list_background_predictions",
        tag="background-predictions",
        path="/v1/predictions",
        method="get",
        text="List predictions in the background, newest first.",
        answer="BackgroundPredictions",
        statuses=(400,),
        parameters=(*_pages("prediction"), _ORDER),
    ),
    Operation(
        id="get_background_prediction",
        tag="background-predictions",
        path="/v1/predictions/{prediction_id}",
        method="get",
        text="Return a prediction in the background, with its answer once there is one.",
        answer="BackgroundPrediction",
        statuses=(404,),
        parameters=_PREDICTION,
    ),
    Operation(
        id="cancel_background_prediction",
        tag="background-predictions",
        path="/v1/predictions/{prediction_id}/cancel",
        text="Cancel a prediction that has not ended.",
        answer="BackgroundPrediction",
        statuses=(404, 409),
        parameters=_PREDICTION,
    ),
)

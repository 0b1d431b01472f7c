"""A client's connection to Flower's SuperLink: messages come and answers go, within limits.

Flower's own `http_request_response` ends the process where it is refused, and takes answers of any
size.
"""

from __future__ import annotations

import logging
import random
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_CALL_TIMEOUT, HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.client import (
    ProtobufCall,
    ProtobufClientInterceptor,
    ProtobufRequestContext,
)
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedblocks.core.errors import UserError
from fedblocks.core.small_files import read_small
from fedblocks.flower.client.causes import said_reason
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.keys.trust import trust_in
from fedblocks.flower.wire.messages import TooLargeError
from fedblocks.flower.wire.records import count_assembled_bytes

SMALL = 2**24  # bytes of an answer that brings no objects
BEGIN, MOST = 0.5, 20.0  # seconds between two tries: at first, and in the end
Result = TypeVar("Result")
Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]
log = logging.getLogger(__name__)


class RunOverError(Exception):
    """The run that a message belongs to has ended."""


class Meter:
    """A count of the bytes that may still come, for several threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._left = most
        self._lock = threading.Lock()

    def count(self, number: int) -> None:
        with self._lock:
            self._left -= number
            if self._left < 0:
                raise TooLargeError(
                    f"the server sends more than the {self.most} bytes that this client takes"
                )


class _Carrier:
    """The last in Flower's chain: it sends, and reads no more of an answer than its
    meter allows.
    """

    def __init__(self, secured: ssl.SSLContext | bool) -> None:
        self.http = httpx.Client(verify=secured, timeout=30.0)
        self.objects = Meter(0)  # for the message that is being fetched
        self.hurried = False
        self._version = dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())
        self._process = {"fedblocks-process": secrets.token_hex(8)}  # apart from others of this key

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        # identity: what comes is as long as it says, with nothing to unpack
        context.request.headers.update(
            {**self._version, **self._process, "accept-encoding": "identity"}
        )
        if self.hurried:
            context.request.extensions["timeout"] = httpx.Timeout(HEARTBEAT_CALL_TIMEOUT).as_dict()
        meter = self.objects if context.rpc_method.endswith("PullObject") else Meter(SMALL)
        response = self.http.send(context.request, stream=True)
        body = bytearray()
        try:
            for chunk in response.iter_raw():
                meter.count(len(chunk))
                body += chunk
        finally:
            response.close()
        if warning := response.headers.get(VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY):
            self._warn(warning)
        date = {name: value for name, value in response.headers.items() if name == "date"}
        return httpx.Response(
            response.status_code, headers=date, content=bytes(body), request=context.request
        )

    @cache  # noqa: B019 - one of these in a process
    def _warn(self, warning: str) -> None:
        log.warning(
            "the server has another version of Flower, which may not work: %s", warning[:300]
        )


class Fleet:
    """The requests of a client to its server."""

    def __init__(self, host: ClientHost, folder: Path, key: str = "client.key") -> None:
        self.insecure = host.insecure
        self._has_entered = False
        secured: ssl.SSLContext | bool
        if host.insecure:
            self._keys = generate_key_pairs()
            secured = False
            address = f"http://{host.server}"
        else:
            self._keys = _keys(folder / key)
            secured = trust_in(folder)
            address = f"https://{host.server}"
        self._carrier = _Carrier(secured)
        signing = NodeAuthHttpInterceptor(*self._keys)
        chain: list[ProtobufClientInterceptor] = [signing, self._carrier]
        self._ask = FleetHttpClient(address, interceptors=chain, verify=secured)

    def enter(self, number: int | None) -> int:
        """Connect to the server and return the node's number. An earlier process that the server
        still counts as connected is signed off: what it was asked, this one is asked again.
        """
        if number is not None and self._is_known(number):
            if self._has_entered:
                return number
            self._ask.DeactivateNode(DeactivateNodeRequest(node_id=number))
        public = public_key_to_bytes(self._keys[1])
        if self.insecure:
            with suppress(httpx.HTTPStatusError):  # it was registered before
                self._ask.RegisterNode(RegisterNodeFleetRequest(public_key=public))
        beat = HEARTBEAT_DEFAULT_INTERVAL
        request = ActivateNodeRequest(public_key=public, heartbeat_interval=beat)
        number = int(self._ask.ActivateNode(request).node_id)
        self._has_entered = True
        return number

    def _is_known(self, number: int) -> bool:
        try:
            return self.beat(number)
        except httpx.HTTPStatusError:
            return False  # of another server, or of another key

    def beat(self, number: int) -> bool:
        """Tell the server that this client is alive; return whether the server knows it."""
        node = Node(node_id=number)
        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        return bool(self._ask.SendNodeHeartbeat(request).success)

    def leave(self, number: int) -> None:
        """Tell the server that this client ends."""
        self._carrier.hurried = True
        self._ask.DeactivateNode(DeactivateNodeRequest(node_id=number))
        if self.insecure:
            self._ask.UnregisterNode(UnregisterNodeFleetRequest(node_id=number))

    def next(self, number: int) -> tuple[Message, ObjectTree] | None:
        """Return the next message, without its content."""
        answer = self._ask.PullMessages(PullMessagesRequest(node=Node(node_id=number)))
        if not answer.messages_list or not answer.message_object_trees:
            return None
        try:
            return message_from_proto(answer.messages_list[0]), answer.message_object_trees[0]
        except (TypeError, KeyError) as error:
            raise ValueError(f"this is not a message of Flower: {error}") from error

    def fetch(self, number: int, message: Message, tree: ObjectTree, most: int) -> None:
        """Fetch the content of a message, unless it has more than `most` bytes."""
        node = Node(node_id=number)
        run = message.metadata.run_id
        end = ends(message)
        self._carrier.objects = Meter(most)
        pull = make_pull_object_fn_protobuf(
            lambda request: patiently(partial(self._ask.PullObject, request), end), node, run
        )
        names = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
        contents = pull_objects(names, pull, max_time=max(0.0, end - time.time()))
        confirm = make_confirm_message_received_fn_protobuf(
            lambda request: patiently(partial(self._ask.ConfirmMessageReceived, request), end),
            node,
            run,
        )
        confirm(message.metadata.message_id)
        if (size := count_assembled_bytes(contents)) > most:
            raise TooLargeError(f"arrays of {size} bytes, and this client takes {most}")
        whole = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(whole, Message) or not whole.has_content():
            raise ValueError("the message holds nothing")
        message.content = whole.content

    def deliver(self, number: int, reply: Message, seconds: float) -> None:
        """Send an answer; on another try, only what has not arrived yet."""
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            tree, parts = get_object_tree(reply), get_all_nested_objects(reply)
            head = message_to_proto(remove_content_from_message(reply))
            request = PushMessagesRequest(
                node=Node(node_id=number),
                messages_list=[head],
                message_object_trees=[tree],
                clientapp_runtime_list=[seconds],
            )

            def push() -> None:
                answer = self._ask.PushMessages(request)
                push_one = make_push_object_fn_protobuf(
                    self._ask.PushObject,
                    Node(node_id=number),
                    reply.metadata.run_id,
                    answer.session_id,
                )
                wanted = {*answer.objects_to_push}
                push_object_contents_from_iterable(
                    ((name, part.deflate()) for name, part in parts.items() if name in wanted),
                    push_one,
                )

            patiently(push, ends(reply))


def _keys(file: Path) -> Keys:
    try:
        key = load_ssh_private_key(read_small(file), None)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the key {file}: {error}", "see docs/deploy.md") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(
            f"{file} is not a key that Flower takes", "make one with: fedblocks federation init"
        )
    return key, key.public_key()


def ends(message: Message) -> float:
    """Return the time after which nobody waits for a message."""
    return message.metadata.created_at + message.metadata.ttl


def patiently(action: Callable[[], Result], end: float) -> Result:
    """Try an action until it succeeds or it is too late; only losses on the way are tried again."""
    pause = BEGIN
    while True:
        try:
            return action()
        except (httpx.HTTPStatusError, httpx.TransportError, ObjectPushError) as error:
            status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 500
            if status == httpx.codes.FORBIDDEN:
                raise RunOverError from error
            if status < 500 or time.time() + pause > end:
                raise
            if pause == BEGIN:
                left = end - time.time()
                why = said_reason(getattr(error, "response", None)) or error
                log.warning("lost on the way, trying again until %.0f s from now: %s", left, why)
        time.sleep(pause * random.uniform(0.7, 1.0))
        pause = min(2 * pause, MOST)

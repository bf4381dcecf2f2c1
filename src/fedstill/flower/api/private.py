"""Every name of Flower's that is not public, and every attribute of its objects that is not: all of them in this file.

A new version of Flower that moves one of them is met here. What only asks and answers, fetching an object for instance,
is written in the files beside this one with Flower's protocol buffers, which change less than its functions.
"""

import sys
from dataclasses import replace
from typing import Any

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common import constant as constant
from flwr.common import serde as serde
from flwr.proto import control_pb2 as control_pb2
from flwr.proto import fab_pb2 as fab_pb2
from flwr.proto import fleet_pb2 as fleet_pb2
from flwr.proto import heartbeat_pb2 as heartbeat_pb2
from flwr.proto import message_pb2 as message_pb2
from flwr.proto import run_pb2 as run_pb2
from flwr.proto import runtime_pb2 as runtime_pb2
from flwr.proto.node_pb2 import Node as Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER as FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER as FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.constant import TaskType as TaskType
from flwr.supercore.control import ControlHttpClient as ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects as get_all_nested_objects
from flwr.supercore.inflatable.inflatable_object import get_object_tree as get_object_tree
from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute as no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents as inflate_object_from_contents
from flwr.supercore.inflatable.inflatable_utils import push_objects as push_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor as RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor as SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient as RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient as FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor as NodeAuthHttpInterceptor


def runtime_client(grid: Any) -> Any:
    """The client of the Runtime API that a server app's `Grid` speaks through."""
    return grid._runtime_client


def http_line(client: Any) -> Any:
    """The httpx client inside one of Flower's clients."""
    return client._client


def head_to_send(message: Message) -> Any:
    """A message as it is announced, its content left out; it gets the number of one that is sent, its own checksum."""
    message.metadata.__dict__["_message_id"] = message.object_id
    return serde.message_to_proto(remove_content_from_message(message))


def app_bundle_around(project: str) -> bytes:
    """Flower's app bundle of one file, a pyproject.toml with this text."""
    from flwr.cli.build import build_fab_from_files

    content, _ = build_fab_from_files({"pyproject.toml": project.encode()})
    return bytes(content)


def superlink_app(words: list[str], secret: bytes) -> tuple[Any, Any]:
    """Flower's SuperLink with these command-line words: its HTTP application and its settings.

    Whoever takes a run's task must know `secret`.
    """
    from flwr.superlink.cli import flower_superlink as superlink
    from flwr.superlink.main import create_app

    link = sys.modules[superlink.__module__]
    sys.argv = ["flower-superlink", *words, "--isolation", "process"]
    settings = replace(link._parse_superlink_lifespan_config(), superexec_auth_secret=secret)
    return create_app(settings, link.SuperLinkLifespan), settings


def run_server_app(token: str) -> None:
    """Flower's `flwr-serverapp` in this process, with this token beside the words of the command line."""
    from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

    sys.argv += ["--token", token]
    flwr_serverapp()

"""Names of replicas on one node: lasting, taken by one process at a time, inherited from those that died."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from protocol.errors import ProtocolError
from protocol.names import FleetName, is_replica_name, parse_fleet_name
from serving.errors import ConfigError
from serving.fleet.slots import held_slots, node_name, take_slot


def test_a_node_keeps_its_name_and_another_folder_is_another_node(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = node_name(tmp_path / "one")
    assert node_name(tmp_path / "one") == first != node_name(tmp_path / "two")
    assert is_replica_name(str(FleetName("p", first, 0))) and parse_fleet_name(f"p-q-{first}-3").pool == "p-q"


def test_a_name_has_one_reading() -> None:
    assert parse_fleet_name("a-b-n1-0") == FleetName("a-b", "n1", 0)
    for wrong in ("a-0", "a-n1", "a-n1-01", "a-n1-0\n", "A-n1-0", "-n1-0", "a-n_1-0"):
        with pytest.raises(ProtocolError):
            parse_fleet_name(wrong)


def test_replicas_take_the_lowest_free_slots_of_their_pool(tmp_path: Path) -> None:
    taken = [take_slot(tmp_path, "small") for _ in range(3)]
    assert [slot.name.slot for slot in taken] == [0, 1, 2]
    assert take_slot(tmp_path, "large").name.slot == 0
    taken[1].release(settled=True)
    assert take_slot(tmp_path, "small").name == taken[1].name
    with pytest.raises(ConfigError, match="all 3 slots"):
        take_slot(tmp_path, "small", most=3)


def test_a_slot_whose_holder_died_is_taken_first(tmp_path: Path) -> None:
    zero, one = (take_slot(tmp_path, "small") for _ in range(2))
    zero.release(settled=True)  # drained
    one.release(settled=False)  # as a killed process leaves it
    assert take_slot(tmp_path, "small").name == one.name
    assert take_slot(tmp_path, "small").name == zero.name


def _hold_and_die(folder: Path) -> None:
    take_slot(folder, "small")
    os.kill(os.getpid(), 9)


def test_a_killed_process_leaves_its_slot_to_the_next(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(tmp_path,))
    process.start()
    process.join(30)
    assert process.exitcode == -9 and held_slots(tmp_path) == []
    with take_slot(tmp_path, "small") as slot:
        assert slot.name.slot == 0 and held_slots(tmp_path) == [slot.name]


def test_a_folder_that_cannot_be_used_is_an_error_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match="a disk of this node alone"):
        take_slot(tmp_path / "state", "small")

"""The keys of a host are files (T8, T12, T15)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shoal import limits
from shoal.errors import Invalid
from shoal.security import keyring
from shoal.security.expiry import moment
from shoal.security.keyring import PublicKey, alone


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_secret_is_for_its_owner_alone_whatever_the_umask_is(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        keyring.make(folder, "hostb", "worker")
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert mode(folder / "hostb.secret") == 0o600


def test_a_key_is_read_as_it_was_made(folder: Path) -> None:
    made = keyring.make(folder, "hostb", "worker")
    assert keyring.own_keys(folder) == [made]
    assert keyring.parse((folder / "hostb.public").read_text()) == PublicKey("worker", "hostb", made.public)


def test_nothing_that_is_shown_of_a_key_has_its_secret_in_it(folder: Path) -> None:
    made = keyring.make(folder, "hostb", "worker")
    secret = (folder / "hostb.secret").read_text().strip().split(":")[2]
    for shown in (repr(made), str(made), made.line, (folder / "hostb.public").read_text()):
        assert secret not in shown
        assert str(made.secret) not in shown


def test_a_secret_that_others_can_read_is_refused_with_what_to_do(folder: Path) -> None:
    keyring.make(folder, "hostb", "worker")
    (folder / "hostb.secret").chmod(0o640)
    with pytest.raises(Invalid, match=r"mode 0640\): chmod 600"):
        keyring.own_keys(folder)


def test_a_folder_that_others_can_write_to_is_refused_and_one_they_can_read_is_closed(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Invalid, match="chmod 700"):
        keyring.make(folder, "hostb", "worker")
    folder.chmod(0o755)
    keyring.make(folder, "hostb", "worker")
    assert mode(folder) == 0o700


@pytest.mark.parametrize(
    "text", ["", "worker:hostb", "worker:hostb:short", "worker:other:" + "a" * 52, "\x00\xff" * 40]
)
def test_a_damaged_secret_is_named_and_not_a_letter_of_it_is_shown(folder: Path, text: str) -> None:
    keyring.make(folder, "hostb", "worker")
    (folder / "hostb.secret").write_text(text)
    with pytest.raises(Invalid, match=r"hostb\.secret") as caught:
        keyring.own_keys(folder)
    assert "short" not in str(caught.value)


def test_a_key_is_never_made_over_another(folder: Path) -> None:
    made = keyring.make(folder, "hostb", "worker")
    with pytest.raises(Invalid, match="is there already"):
        keyring.make(folder, "hostb", "server")
    assert keyring.own_keys(folder) == [made]


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "../a", "a:b", "-a", "a" * 65, "a b", "ä b"])
def test_a_name_that_is_no_name_makes_no_file(folder: Path, name: str) -> None:
    with pytest.raises(Invalid, match="name"):
        keyring.make(folder, name, "worker")
    assert not folder.exists()


def test_the_coordinators_name_is_for_its_own_key_alone(folder: Path) -> None:
    with pytest.raises(Invalid, match="coordinator's own"):
        keyring.make(folder, "coordinator", "worker")
    with pytest.raises(Invalid, match="coordinator's own"):
        keyring.parse("worker:coordinator:" + "a" * 52)
    assert keyring.make(folder, "coordinator", "coordinator").is_of("anyone")


@pytest.mark.parametrize(
    "line", ["", "worker:hostb", "boss:hostb:" + "a" * 52, "worker:hostb:" + "1" * 52, "worker:hostb:aa"]
)
def test_a_line_that_is_no_key_is_refused(line: str) -> None:
    with pytest.raises(Invalid):
        keyring.parse(line)


def test_a_key_is_for_its_name_and_what_stands_under_it_and_nobody_else(folder: Path) -> None:
    key = keyring.make(folder, "hostb", "worker")
    assert all(key.is_of(name) for name in ("hostb", "hostb.worker-1", "hostb/worker-1", "b/hostb.worker-1"))
    assert not any(
        key.is_of(name) for name in ("hostbc", "hostb-1", "host", "coordinator", "", "b/hostb", "b/x.hostb.x")
    )


def test_who_is_revoked_stays_so_until_it_has_a_new_key(folder: Path, tmp_path: Path) -> None:
    old = keyring.make(tmp_path / "old", "hostb", "worker")
    assert keyring.allow(folder, old) is None
    assert keyring.revoke(folder, "hostb") == [PublicKey("worker", "hostb", old.public)]
    with pytest.raises(Invalid, match="was revoked"):
        keyring.allow(folder, old)
    with pytest.raises(Invalid, match="no key of 'hostb'"):
        keyring.revoke(folder, "hostb")
    new = keyring.make(tmp_path / "new", "hostb", "worker")
    keyring.allow(folder, new)
    assert [(key.role, key.public) for key in keyring.read_list(folder)[0]] == [
        ("revoked", old.public),
        ("worker", new.public),
    ]


def test_a_second_key_of_a_name_takes_the_place_of_the_first(folder: Path, tmp_path: Path) -> None:
    first, second = (keyring.make(tmp_path / place, "hostb", "worker") for place in ("one", "two"))
    keyring.allow(folder, first)
    assert keyring.allow(folder, first) is None  # the same key again changes nothing
    assert keyring.allow(folder, second) == PublicKey("worker", "hostb", first.public)
    assert [key.role for key in keyring.read_list(folder)[0]] == ["revoked", "worker"]


def test_one_key_has_one_name(folder: Path, tmp_path: Path) -> None:
    made = keyring.make(tmp_path / "one", "hostb", "worker")
    keyring.allow(folder, made)
    with pytest.raises(Invalid, match="is hostb's already"):
        keyring.allow(folder, PublicKey("server", "hostc", made.public))


def test_a_list_is_read_around_lines_that_are_not_understood_and_never_written_over_them(folder: Path) -> None:
    made = keyring.make(folder, "hostb", "worker")
    text = f"# who may call\n\n{made.line}\nnonsense\n"
    (folder / "allowed").write_text(text)
    keys, wrong = keyring.read_list(folder)
    assert [key.name for key in keys] == ["hostb"]
    assert len(wrong) == 1 and "line 4" in wrong[0]
    with pytest.raises(Invalid, match="mend it first"):
        keyring.revoke(folder, "hostb")
    assert (folder / "allowed").read_text() == text


def test_a_list_that_is_not_there_lets_nobody_in(folder: Path) -> None:
    assert keyring.read_list(folder) == ([], [])
    (folder / "allowed").mkdir(parents=True)
    keys, wrong = keyring.read_list(folder)
    assert keys == [] and "nobody is let in" in wrong[0]


def test_the_usual_folder_is_the_users_own_unless_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHOAL_KEYS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keyring.default_folder() == tmp_path / "shoal" / "keys"
    monkeypatch.setenv("SHOAL_KEYS", str(tmp_path / "mine"))
    assert keyring.default_folder() == tmp_path / "mine"


def test_a_folder_that_others_can_write_to_lets_nobody_in_and_has_no_keys(folder: Path, tmp_path: Path) -> None:
    keyring.make(folder, "coordinator", "coordinator")
    keyring.allow(folder, keyring.make(tmp_path / "other", "hostb", "worker"))
    folder.chmod(0o777)
    with pytest.raises(Invalid, match="chmod 700"):
        keyring.own_keys(folder)
    keys, wrong = keyring.read_list(folder)
    assert keys == [] and "nobody is let in" in wrong[0]


def test_a_folder_of_other_things_is_not_closed_to_those_who_read_it(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (folder / "index.html").write_text("hello")
    with pytest.raises(Invalid, match="name a folder for keys"):
        keyring.make(folder, "hostb", "worker")
    assert mode(folder) == 0o755


def test_a_file_that_a_reader_would_wait_for_is_refused(folder: Path) -> None:
    keyring.make(folder, "coordinator", "coordinator")
    os.mkfifo(folder / keyring.ALLOWED)
    assert "no plain file" in keyring.read_list(folder)[1][0]
    os.mkfifo(folder / "hostb.secret", 0o600)
    with pytest.raises(Invalid, match="no plain file"):
        keyring.own_keys(folder)


def test_a_key_is_bound_by_its_line_on_the_list(folder: Path, tmp_path: Path) -> None:
    made = keyring.make(tmp_path / "b", "hostb", "worker")
    keyring.allow(folder, made, "b", moment("2026-12-31T18:00"))
    assert f"{made.line} group=b until=2026-12-31T18:00:00Z\n" == (folder / "allowed").read_text()
    assert keyring.read_list(folder) == (
        [PublicKey("worker", "hostb", made.public, "b", moment("2026-12-31T18:00"))],
        [],
    )


def test_nobody_is_set_free_by_being_added_again(folder: Path, tmp_path: Path) -> None:
    def now() -> tuple[str, int]:
        return next((key.group, key.until) for key in keyring.read_list(folder)[0] if key.role != "revoked")

    made, other = (keyring.make(tmp_path / place, "hostb", "worker") for place in ("one", "two"))
    keyring.allow(folder, made, "b", 7)
    keyring.allow(folder, made)
    assert now() == ("b", 7)
    keyring.allow(folder, made, until=9)
    assert now() == ("b", 9)
    keyring.allow(folder, other)
    assert now() == ("b", 0)  # a new key has a new expiry, but the same group
    keyring.allow(folder, other, "", 0)
    assert now() == ("", 0)


def test_the_line_of_another_host_does_not_say_how_its_name_is_bound_here(folder: Path, tmp_path: Path) -> None:
    made, other = (keyring.make(tmp_path / place, "hostb", "worker") for place in ("one", "two"))
    keyring.allow(folder, made, "b", moment("2026-12-31"))
    before = (folder / "allowed").read_text()
    for line in (f"{made.line} group=c", f"{other.line} group=c", f"{made.line} until=2999-01-01"):
        with pytest.raises(Invalid, match=r"not how hostb is bound here .* say so yourself"):
            keyring.allow(folder, keyring.parse(line))
    assert (folder / "allowed").read_text() == before
    keyring.allow(folder, keyring.parse(f"{made.line} group=b"))
    assert (folder / "allowed").read_text() == before
    # An argument of this command has priority over the line.
    keyring.allow(folder, keyring.parse(f"{other.line} group=c"), "d")
    assert keyring.read_list(folder)[0][-1].group == "d"


def test_of_two_keys_of_a_name_that_were_written_by_hand_one_is_left(folder: Path, tmp_path: Path) -> None:
    one, two, new = (keyring.make(tmp_path / place, "hostb", "worker") for place in ("one", "two", "new"))
    keyring.make(folder, "coordinator", "coordinator")
    (folder / "allowed").write_text(f"{one.line}\n{two.line}\n{two.line} until=2030-01-01\n")
    keyring.allow(folder, two, "b")
    assert [key.line for key in keyring.read_list(folder)[0]] == [
        f"revoked:hostb:{one.public}",
        f"{two.line} group=b until=2030-01-02T00:00:00Z",
    ]
    keyring.allow(folder, new)
    assert [(key.role, key.group) for key in keyring.read_list(folder)[0]] == [
        ("revoked", ""),
        ("revoked", ""),
        ("worker", "b"),
    ]


def test_who_waits_for_the_list_is_told_for_whom_and_changes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ALONE_WITHIN", 0)
    made = keyring.make(tmp_path / "b", "hostb", "worker")
    keyring.make(folder, "coordinator", "coordinator")
    with alone(folder):  # a command that was stopped half-way
        with pytest.raises(Invalid, match="nothing was changed") as caught:
            keyring.allow(folder, made)
        assert not (folder / "allowed").exists()
    # Not every system says which process holds the lock.
    assert str(caught.value).startswith((f"process {os.getpid()} has held", "another process has held"))
    assert "let it go on (fg) or end it" in str(caught.value)
    keyring.allow(folder, made)


@pytest.mark.parametrize("role", ["server", "coordinator"])
def test_who_is_the_whole_clusters_is_confined_to_no_group(folder: Path, tmp_path: Path, role: str) -> None:
    made = keyring.make(tmp_path / "one", "coordinator" if role == "coordinator" else "rack", role)
    with pytest.raises(Invalid, match="the whole cluster's"):
        keyring.allow(folder, made, "b")
    with pytest.raises(Invalid, match="the whole cluster's"):
        keyring.parse(f"{made.line} group=b")
    keyring.allow(folder, made, until=9)


EMPTY = ["group=", "group", "until"]  # what a script writes if its variable is empty
TWICE = ["group=b group=", "group=b group=c", "until=2020-01-01 until=never"]


@pytest.mark.parametrize(
    "words", ["group=a/b", "group=cluster", "until=soon", "until=30d", "until=", "b", "more=1", *EMPTY, *TWICE]
)
def test_a_line_whose_bounds_are_not_understood_lets_nobody_in(folder: Path, tmp_path: Path, words: str) -> None:
    made = keyring.make(folder, "hostb", "worker")
    (folder / "allowed").write_text(f"{made.line} {words}\n")
    keys, wrong = keyring.read_list(folder)
    assert keys == [] and len(wrong) == 1


def test_a_key_that_is_confined_has_names_within_its_group() -> None:
    own, guest = PublicKey("client", "b", "a" * 52, "b"), PublicKey("worker", "hostc", "a" * 52, "b")
    assert all(own.is_of(name) for name in ("b/scheduler", "b/worker-0", "b/hostc.x"))
    assert guest.is_of("b/hostc.worker-1")
    assert not any(guest.is_of(name) for name in ("b/scheduler", "b/hostc", "b/hostcc.x", "c/hostc.x", "hostc/x", "b/"))
    assert guest.is_of("hostc.look-1")  # roles decide what it may send under that name


def test_a_key_is_over_the_group_of_its_very_name_and_over_none_that_begins_with_it() -> None:
    key = PublicKey("client", "exp", "a" * 52)
    assert key.is_of("exp/scheduler") and key.is_of("exp.1/exp.x") and key.is_of("exp.1")
    assert not any(key.is_of(name) for name in ("exp.1/scheduler", "exp.1/own.client-1"))
    assert PublicKey("client", "exp", "a" * 52, "exp.1").called == "exp.1/exp.SOMETHING"


@pytest.mark.parametrize("name", ["scheduler", "worker-0", "evaluator"])
def test_no_key_has_a_name_that_a_groups_own_nodes_have(name: str) -> None:
    assert not PublicKey("client", name, "a" * 52).is_of(f"b/{name}")
    assert PublicKey("client", name, "a" * 52).is_of(f"b/{name}.x")


def test_what_is_written_between_keys_for_people_stays(folder: Path, tmp_path: Path) -> None:
    one, two, new = (keyring.make(tmp_path / name, name, "worker") for name in ("one", "two", "new"))
    keyring.allow(folder, one)
    (folder / "allowed").write_text(f"# of the lab\n{one.line}\n\n  # from next door\n{two.line}\n")
    keyring.allow(folder, new)
    keyring.revoke(folder, "one")
    lines = (folder / "allowed").read_text().splitlines()
    assert lines[0] == "# of the lab" and lines[1].startswith("revoked:one:")
    assert lines[2:] == ["", "  # from next door", two.line, new.line]

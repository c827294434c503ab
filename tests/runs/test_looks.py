"""The ledger: whoever looks again takes fresh episodes and the next share, whatever happened in between."""

import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

import psyco
from psyco._src.runs import store
from psyco._src.runs.lock import lock
from psyco._src.runs.store import load_run_info
from psyco._src.verification import episode_stream
from psyco._src.verification import verifier as verification
from psyco._src.verification.ledger import look_share
from psyco._src.verification.rounding import percent
from tests.environments import Walk
from tests.runs.small import CONFIG
from tests.runs.test_crash import Died, dying

REQUIREMENT = CONFIG.requirement
OTHER = "P>=0.1 [ G distance >= 0.01 ] & C>=0.9"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("looks") / "run"
    psyco.start(
        "particle-dance",
        REQUIREMENT,
        folder=folder,
        parameters={"horizon": 5},
        episodes=100,
        settings=psyco.Settings(hidden=4, max_episodes=40),
    )
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def streams(monkeypatch):
    """The key of every batch of episodes that a verification sampled."""
    import jax

    seen = []
    sample = episode_stream.sample_episodes

    def watched(sampler, theta, key, count, **where):
        seen.append(tuple(jax.random.key_data(key).tolist()))
        return sample(sampler, theta, key, count, **where)

    monkeypatch.setattr(episode_stream, "sample_episodes", watched)
    return seen


def test_verifying_a_run_twice_takes_fresh_episodes_and_never_more_than_the_permitted_error(folder, streams):
    first = psyco.open_run(folder).certificate
    taken = len(first.looks)
    again = [psyco.verify(folder, max_episodes=40) for _ in range(3)]
    for i, certificate in enumerate(again):
        assert [look.share for look in certificate.looks] == [look_share(n + 1) for n in range(taken + i + 1)]
        assert certificate.guarantee.false_accept <= 0.1 + 1e-12
    assert len(set(streams)) == 3  # no stream is used twice
    blocks = [look.seed_block for look in again[-1].looks]
    assert blocks == list(range(taken + 3))
    assert again[-1].looks[:taken] == first.looks


def test_the_policy_file_of_a_run_is_the_run(folder):
    taken = len(psyco.open_run(folder).certificate.looks)
    certificate = psyco.verify(folder / "policy.safetensors", requirement=REQUIREMENT, max_episodes=40)
    assert len(certificate.looks) == taken + 1


def test_a_look_that_was_begun_is_spent(folder, monkeypatch):
    taken = len(psyco.open_run(folder).certificate.looks)

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(verification, "verify_parameters", die)
        with pytest.raises(KeyboardInterrupt):
            psyco.verify(folder)
    certificate = psyco.verify(folder, max_episodes=40)
    assert len(certificate.looks) == taken + 2
    assert certificate.looks[-2].episodes == 0
    assert certificate.looks[-1].seed_block == taken + 1
    assert certificate.share == look_share(taken + 2)


@pytest.mark.parametrize("how", ["before", "half", "after"])
def test_no_episode_is_seen_twice_wherever_a_verification_dies(folder, streams, how):
    psyco.verify(folder, max_episodes=40)  # which compiles, and keeps what it compiled in files of its own
    with dying(10**9, how) as moments:
        psyco.verify(folder, max_episodes=40)
    for moment in range(1, moments() + 1):
        with dying(moment, how), suppress(Died):
            psyco.verify(folder, max_episodes=40)
            pytest.fail("it lived")
    certificate = psyco.verify(folder, max_episodes=40)
    assert len(set(streams)) == len(streams) > 2
    assert sum(look.share for look in certificate.looks) < 1.0


def test_a_question_that_cannot_be_asked_costs_nothing(folder):
    before = (folder / "looks.json").read_bytes()
    for wrong in (
        {"method_options": {"nonsense": 1}},
        {"requirement": OTHER, "method": "sprt", "method_options": {"indifference": -1}},
        {"max_episodes": 0},
        {"requirement": "P>=0.5 [ G nonsense > 0 ]"},
    ):
        with pytest.raises(psyco.PsycoError):
            psyco.verify(folder, **wrong)
    assert (folder / "looks.json").read_bytes() == before


def test_another_requirement_has_an_error_of_its_own_and_fresh_episodes(folder, streams):
    taken = len(psyco.open_run(folder).certificate.looks)
    certificate = psyco.verify(folder, requirement=OTHER, max_episodes=40)
    assert (certificate.share, len(certificate.looks), certificate.seed_block) == (0.5, 1, taken)


def test_the_next_look_uses_the_method_of_the_earlier_ones(folder, cli):
    used = {"method": "sprt", "method_options": {"indifference": 0.05}}
    psyco.verify(folder, requirement=OTHER, max_episodes=40, **used)
    for given in ({}, {"method": "sprt"}, used):
        certificate = psyco.verify(folder, requirement=OTHER, max_episodes=40, **given)
        assert (certificate.method, certificate.options) == ("sprt", {"indifference": 0.05})
    assert cli("verify", folder, "--require", OTHER, "--max-episodes", "40").status != 2
    said = cli("verify", folder, "--require", OTHER, "--method", "fixed")
    assert said.status == 2 and "--method sprt --option indifference=0.05; or do not" in " ".join(said.err.split())
    after = psyco.verify(folder, requirement=OTHER, after=certificate, max_episodes=40, ignore_looks=True)
    assert after.method == "sprt"
    assert psyco.verify(folder, ignore_looks=True, max_episodes=40).method == "anytime"


def test_looks_can_be_ignored_and_the_certificate_says_so(folder, cli):
    before = (folder / "looks.json").read_bytes()
    certificate = psyco.verify(folder, ignore_looks=True, max_episodes=40)
    assert (certificate.share, len(certificate.looks)) == (1.0, 1)
    assert "not counted" in " ".join(certificate.notes)
    assert (folder / "looks.json").read_bytes() == before
    said = cli("verify", folder, "--ignore-looks", "--max-episodes", "40")
    assert "Earlier looks at policies of this run were not counted" in said.out
    assert psyco.replay(certificate, folder).matches


def test_a_damaged_ledger_is_an_error_that_says_what_to_do(folder, cli):
    content = json.loads((folder / "looks.json").read_text())
    content["entries"][0]["look"]["share"] = 0.001
    (folder / "looks.json").write_text(json.dumps(content))
    said = cli("verify", folder)
    assert said.status == 2
    assert "looks.json is damaged" in said.err
    assert "--ignore-looks" in said.err


def test_an_account_that_is_gone_is_not_forgotten(folder):
    (folder / "looks.json").unlink()
    with pytest.raises(psyco.RunError, match=r"looks\.json is gone.*--ignore-looks"):
        psyco.verify(folder, max_episodes=40)
    assert len(psyco.verify(folder, max_episodes=40, ignore_looks=True).looks) == 1  # as the message advises


def test_an_older_account_that_was_put_back_is_noticed(folder, cli):
    """Its next look would take the share and the block of one that was taken, with a seed of one's choice."""
    before = (folder / "looks.json").read_bytes()
    psyco.verify(folder, max_episodes=40)
    (folder / "looks.json").write_bytes(before)
    with pytest.raises(psyco.RunError, match=r"looks.json does not have the look of certificates/0002\.json"):
        psyco.verify(folder, max_episodes=40, seed=1)
    with pytest.raises(psyco.RunError, match="an older file was put back"):
        psyco.resume(folder, episodes="+100")
    done = cli("verify", folder, "--seed", "1")
    assert done.status == 2 and "--ignore-looks" in done.err and "Traceback" not in done.err
    assert len(psyco.verify(folder, max_episodes=40, ignore_looks=True).looks) == 1


def test_copies_of_a_run_see_the_same_episodes(folder, tmp_path):
    """So who verifies a run and its copies has one chance, and not one for each copy."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    here, there = (psyco.verify(place, max_episodes=40) for place in (folder, copy))
    assert here.looks == there.looks and here.findings == there.findings
    policy, first = psyco.open_run(folder).policy, psyco.open_run(copy).certificate
    branches = [psyco.verify(policy, requirement=REQUIREMENT, after=here, max_episodes=40) for _ in range(2)]
    assert branches[0].findings == branches[1].findings and len(first.looks) == len(here.looks)


def test_an_older_run_without_an_account_has_the_looks_of_its_certificate(folder):
    taken = len(psyco.open_run(folder).certificate.looks)
    (folder / "looks.json").unlink()
    dataclasses.replace(load_run_info(folder), ledger=False).save(folder)
    assert len(psyco.verify(folder, max_episodes=40).looks) == taken + 1


def test_the_same_demand_under_another_name_is_the_same(folder):
    taken = len(psyco.open_run(folder).certificate.looks)
    certificate = psyco.verify(folder, requirement=f'"other": {REQUIREMENT}', max_episodes=40)
    assert len(certificate.looks) == taken + 1


def test_every_way_to_a_runs_policy_leads_to_its_account(folder, tmp_path):
    taken = len(psyco.open_run(folder).certificate.looks)
    link, copy = tmp_path / "link.safetensors", folder / "best.safetensors"
    link.symlink_to(folder / "policy.safetensors")
    shutil.copy(folder / "policy.safetensors", copy)
    for i, path in enumerate((link, copy), 1):
        assert len(psyco.verify(path, requirement=REQUIREMENT, max_episodes=40).looks) == taken + i
    with pytest.raises(psyco.RunError, match="keeps its own account of looks"):
        psyco.certify_candidates([folder], "particle-dance", REQUIREMENT)


def verdicts(folder, cli):
    """What everything that reads a run says about it."""
    [row] = json.loads(cli("runs", folder, "--json").out)
    page = psyco.report(folder).read_text()
    run = psyco.open_run(folder)
    assert run.problems == () and run.certificate.to_json() == (folder / "certificate.json").read_text()
    assert f'data-verdict="{row["verdict"]}"' in page and run.certificate.verdict.name == row["verdict"]
    return row["verdict"], page


def test_the_newest_certificate_of_the_policy_counts_and_all_are_kept(folder, cli):
    first = (folder / "certificate.json").read_bytes()
    assert verdicts(folder, cli)[0] == "SATISFIED"
    psyco.verify(folder, requirement=OTHER, max_episodes=3)  # about something else
    assert verdicts(folder, cli)[0] == "SATISFIED"
    psyco.verify(folder, max_episodes=3)
    assert verdicts(folder, cli)[0] == "UNDECIDED"
    psyco.verify(folder, requirement=f'"other": {REQUIREMENT}')
    verdict, page = verdicts(folder, cli)
    assert verdict == "SATISFIED" and "All looks" in page
    assert all(f"<td>{share}</td>" in page for share in map(percent, (1 / 2, 1 / 6, 1 / 12)))
    psyco.verify(folder, ignore_looks=True, max_episodes=3)  # counts nothing, and does not count
    assert verdicts(folder, cli)[0] == "SATISFIED"
    kept = sorted((folder / "certificates").iterdir())
    assert [path.name for path in kept] == ["0001.json", "0002.json", "0003.json", "0004.json"]
    assert kept[0].read_bytes() == first and all(psyco.replay(path, folder).matches for path in kept)


def test_a_remark_on_a_missing_certificate_ends_with_the_certificate(folder):
    psyco.verify(folder, max_episodes=3)
    dataclasses.replace(load_run_info(folder), remark="No policy was certified").save(folder)
    assert psyco.open_run(folder).remark
    psyco.verify(folder)
    assert psyco.open_run(folder).remark == ""


def test_looks_of_several_processes_keep_a_certificate_each(folder):
    """The lock is one of descriptors, so threads stand for processes."""
    certificate = psyco.open_run(folder).certificate
    blocks = [dataclasses.replace(certificate, seed_block=block) for block in range(1, 9)]
    with ThreadPoolExecutor(len(blocks)) as pool:
        list(pool.map(partial(store.keep_certificate, folder), blocks))
    assert sorted(path.name for path in (folder / "certificates").iterdir())[1:] == [
        f"000{n}.json" for n in range(2, 10)
    ]
    assert (folder / "certificate.json").read_text() == blocks[-1].to_json() and not psyco.open_run(folder).problems


@pytest.mark.parametrize("how", ["before", "half", "after"])
def test_a_certificate_is_kept_or_missing_wherever_its_writer_dies(folder, how):
    certificate = dataclasses.replace(psyco.open_run(folder).certificate, seed_block=1)
    for moment in range(1, 6 + 1):  # fsync, rename and fsync of the folder, of two files
        with dying(moment, how), suppress(Died):
            store.keep_certificate(folder, certificate)
            pytest.fail("it lived")
        psyco.resume(folder)  # plays nothing
        assert psyco.open_run(folder).state == "finished"
        assert len(psyco.open_run(folder).certificate.looks) == 1


def test_certificates_of_another_policy_are_refused(folder, caplog):
    certificate = psyco.open_run(folder).certificate
    store.keep_certificate(folder, dataclasses.replace(certificate, seed_block=1, policy="0" * 64))
    assert "not about the policy with which the run ended" in caplog.text
    (folder / "certificates" / "0002.json").write_text(
        dataclasses.replace(certificate, seed_block=1, policy="0" * 64).to_json()
    )
    assert psyco.open_run(folder).certificate == certificate and not psyco.open_run(folder).problems


def test_a_damaged_later_certificate_is_reported_and_does_not_count(folder, cli):
    psyco.verify(folder, max_episodes=3)
    (folder / "certificates" / "0002.json").write_text("{}")
    assert any("0002.json is not a PSyCo certificate" in problem for problem in psyco.open_run(folder).problems)
    (folder / "certificates" / "0002.json").unlink()
    psyco.resume(folder)
    assert psyco.open_run(folder).certificate.verdict is psyco.Verdict.SATISFIED
    psyco.verify(folder, max_episodes=400)
    assert verdicts(folder, cli)[0] == "SATISFIED", "a later look takes the place of the lost one"


def test_an_older_certificate_cannot_take_the_place_of_a_later_one(folder):
    """By copying, deleting or editing files nothing but a damaged run is made of an UNDECIDED one."""
    certificates = folder / "certificates"
    psyco.verify(folder, max_episodes=3)
    assert psyco.open_run(folder).certificate.verdict is psyco.Verdict.UNDECIDED
    forged = (certificates / "0002.json").read_text().replace("UNDECIDED", "SATISFIED")
    (folder / "certificate.json").write_text(forged)
    edited = psyco.open_run(folder)
    assert edited.certificate.verdict is psyco.Verdict.UNDECIDED and edited.state == "damaged"
    for name in ("certificates/0005.json", "certificate.json"):
        shutil.copy(certificates / "0001.json", folder / name)
    copied = psyco.open_run(folder)
    assert copied.certificate.verdict is psyco.Verdict.UNDECIDED
    assert any("belongs into 0001.json" in problem for problem in copied.problems)
    for name in ("0002.json", "0005.json"):
        (certificates / name).unlink()
    lost = psyco.open_run(folder)
    assert [problem for problem in lost.problems if "look 2 at this policy ended UNDECIDED" in problem]


def test_a_certificate_is_not_written_through_a_link(folder, tmp_path, caplog):
    (folder / "certificates").rename(tmp_path / "elsewhere")
    (folder / "certificates").symlink_to(tmp_path / "elsewhere")
    before = psyco.verify(folder, max_episodes=3)
    assert before.verdict.name == "UNDECIDED" and "is a link out of" in caplog.text
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["0001.json"]
    assert any("link out of" in problem for problem in psyco.open_run(folder).problems)


def test_a_certificate_is_not_lost_because_its_run_goes_on(folder, monkeypatch, caplog):
    """The look was entered before; somebody else holds the folder when it ends."""
    monkeypatch.setattr(store, "LOOK_PATIENCE", 0.1)
    verify_parameters = verification.verify_parameters
    with ExitStack() as held:

        def meanwhile(*arguments, **settings):
            held.enter_context(lock(folder))
            return verify_parameters(*arguments, **settings)

        monkeypatch.setattr(verification, "verify_parameters", meanwhile)
        certificate = psyco.verify(folder, max_episodes=40)
    assert certificate.episodes > 0
    assert "not entered in the run's account" in caplog.text


def test_another_method_cannot_share_the_error(folder):
    with pytest.raises(psyco.RunError, match="need one method"):
        psyco.verify(folder, method="fixed", max_episodes=40)


def test_share_and_after_are_the_ledgers_business(folder):
    with pytest.raises(psyco.RunError, match="keeps its own account of looks"):
        psyco.verify(folder, share=1.0)


@pytest.mark.more
def test_a_longer_run_takes_further_looks(folder):
    before = psyco.open_run(folder).certificate
    psyco.resume(folder, episodes="+100")
    after = psyco.open_run(folder).certificate
    assert after.looks[: len(before.looks)] == before.looks
    assert len(after.looks) > len(before.looks)
    assert len({look.seed_block for look in after.looks}) == len(after.looks)


def test_what_synthesize_returned_is_verified_further(streams):
    result = psyco.synthesize(
        "particle-dance",
        REQUIREMENT,
        parameters={"horizon": 5},
        episodes=100,
        settings=psyco.Settings(hidden=4, max_episodes=40, verify_every=0),
    )
    used = set(streams)
    for i in (1, 2):
        certificate = psyco.verify(result, requirement=REQUIREMENT, max_episodes=40, seed=i)
        assert len(certificate.looks) == len(result.certificate.looks) + i
    alone = psyco.verify(result.policy, requirement=REQUIREMENT, max_episodes=40)
    assert alone.share == 1.0
    assert len(used | set(streams)) == len(used) + 3  # the policy by itself has no account, but fresh episodes


def test_replay_repeats_every_look_at_the_policy(folder):
    policy = psyco.open_run(folder).policy
    own = [look.policy == policy.digest for look in psyco.open_run(folder).certificate.looks]
    psyco.verify(folder, max_episodes=7)
    certificate = psyco.verify(folder, max_episodes=40)
    found = psyco.replay(certificate, folder)
    assert found.matches
    others = [text for text in found.not_compared if "another policy" in text]
    assert len(others) == own.count(False)
    assert "when it was issued" in found.not_compared
    # A lie about an earlier look at the same policy is found out, whatever checksum it has.
    earlier = len(certificate.looks) - 2
    text = json.loads(certificate.to_json())
    text["looks"][earlier]["satisfied"] = [text["looks"][earlier]["satisfied"][0] + 1]
    lie = folder / "lie.json"
    lie.write_text(json.dumps(text))
    differences = psyco.replay(lie, folder).differences
    assert any(f"looks.{earlier}.satisfied" in each for each in differences)


class Unplugged(Walk):
    """Its connection may be lost while a certificate is made."""

    lost = False

    def step(self, action):
        if Unplugged.lost:
            raise ConnectionError("lost")
        return super().step(action)


@pytest.mark.parametrize("seeded", [True, False])
def test_a_look_without_seeds_is_not_repeated(tmp_path, monkeypatch, seeded):
    """A run repeats its own look only if that has the same result."""
    domain = psyco.make(Unplugged, horizon=4, seeded=seeded)
    settings = psyco.Settings(
        learner="snes", episodes=20, hidden=4, max_episodes=40, candidates=1, options={"population": 10}
    )
    verify_parameters = verification.verify_parameters

    def lose(*arguments, **more):
        monkeypatch.setattr(Unplugged, "lost", (tmp_path / "run" / "looks.json").exists())
        return verify_parameters(*arguments, **more)

    with monkeypatch.context() as context:
        context.setattr(verification, "verify_parameters", lose)
        with pytest.raises(psyco.EpisodeError, match="lost"):
            psyco.start(domain, "P>=0.1 [ G (abs(obs[0]) <= 3) ] & C>=0.9", tmp_path / "run", settings=settings)
    monkeypatch.setattr(Unplugged, "lost", False)
    certificate = psyco.resume(tmp_path / "run", trust=["tests.runs.test_looks:Unplugged"]).certificate
    assert [look.seed_block for look in certificate.looks] == ([0] if seeded else [0, 1])
    assert certificate.share == look_share(1 if seeded else 2)

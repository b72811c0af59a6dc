"""The kinds of trouble. The reports are public issues and pull requests, as ``owner/repository#number``."""

from __future__ import annotations

from tests.guards.entries import Guard, Kind

_ACCEPTANCE = "tests/acceptance"
_PACKAGE = "lightning_disttest"


def _acceptance(*names: str) -> tuple[str, ...]:
    return tuple(f"{_ACCEPTANCE}/{name}" for name in names)


def _unit(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/unit/{name}" for name in names)


def _guard(tests: tuple[str, ...], file: str, text: str, without: str) -> Guard:
    return Guard(tests, f"{_PACKAGE}/{file}", text, without)


KINDS = (
    Kind(
        "A",
        "one rank fails",
        "One rank fails or takes another branch, and the others hang.",
        "The test fails after a short grace with the error of that rank; the others are shown with their stacks and "
        "are ended; the next test runs. A rank that waits for one that has left the test is found before the limit.",
        ("Lightning-AI/pytorch-lightning#8130", "NVIDIA/Megatron-LM#4139"),
        (
            _guard(
                _acceptance("test_one_rank_fails.py::test_a_session_fixture_that_ends_with_a_barrier"),
                "engine/testrun.py",
                "return self._grace_after(report)",
                "return None",
            ),
            _guard(
                _acceptance("test_left_behind.py::test_time_limit_is_not_waited_for"),
                "engine/testrun.py",
                "return Fate.STRANDED",
                "pass",
            ),
            _guard(
                _acceptance("test_injected_faults.py::test_other_ranks_decide_after_a_death"),
                "engine/testrun.py",
                "if progress.announced is not None and is_planned(event, progress.announced):",
                "if False:",
            ),
            _guard(
                _acceptance(
                    "test_injected_faults.py::test_other_ranks_decide_after_a_death[test_wait_for_one_that_has_left]"
                ),
                "engine/testrun.py",
                "if any(progress.planned for progress in self._ranks):",
                "if False:",
            ),
        ),
        _acceptance(
            "test_one_rank_fails.py::test_the_failure_is_told",
            "test_one_rank_fails.py::test_the_failure_of_a_launched_rank_is_told",
            "test_one_rank_fails.py::test_the_run_goes_on",
            "test_failures.py::test_time_limit_shows_where_a_rank_hangs",
            "test_left_behind.py::test_rank_with_one_more_collective",
        ),
    ),
    Kind(
        "B",
        "hidden failure",
        "The failure that matters is invisible: on another rank, behind a signal, without a stack.",
        "All ranks are watched at once. The report has the error, the stack or the last output of each, the cause "
        "first; what others say of a lost connection comes after it.",
        ("mosaicml/composer#477", "facebookresearch/CrypTen#10"),
        (
            _guard(
                _unit("test_verdict.py::test_own_error_beats_a_lost_connection_that_arrived_first"),
                "reporting/causes.py",
                "severity = Kind.DEATH if kind in (Kind.DEATH, Kind.OWN_ERROR) else kind",
                "severity = 0",
            ),
            _guard(
                _acceptance("test_waiting.py::test_without_py_spy_the_rest_is_there"),
                "engine/inspection.py",
                "supervisor.take_stacks([handle for handle, sight in sights.items() if not sight.is_stopped])",
                "pass",
            ),
            _guard(
                _acceptance("test_shown.py::test_what_a_rank_wrote_past_python"),
                "engine/output.py",
                "parts = [_tail(self._stdout), _tail(self._stderr), self._recent]",
                "parts = [_tail(self._stdout), self._recent]",
            ),
            _guard(
                _unit("test_launched.py::test_one_error_as_a_whole"),
                "reporting/launched.py",
                "return Kind.COMMUNICATION if says_peer_is_gone(error.path, error.message) else Kind.OWN_ERROR",
                "return Kind.OWN_ERROR",
            ),
            _guard(
                _unit("test_launching.py::test_who_waits_shows_its_stacks"),
                "engine/launching.py",
                "        self._take_stacks()\n",
                "",
            ),
            _guard(
                _acceptance("test_what_trainers_leave.py::test_bad_ends_hide_nothing"),
                "strategies/making.py",
                "first_of_chain(error).__context__ = raised",
                "pass",
            ),
        ),
        _acceptance(
            "test_failures.py::test_cause_beats_echo",
            "test_launched_ranks.py::test_one_error_tells_of_all",
            "test_launched_ranks.py::test_whatever_it_is_and_wherever",
            "test_launched_ranks.py::test_hang_of_one_rank",
            "test_timeouts.py::test_all_stacks_are_shown",
            "test_other_harnesses.py::test_a_death_is_told_at_once",
            "test_other_harnesses.py::test_the_first_in_time_is_the_cause",
            "test_shown.py::test_any_exception_arrives",
            "test_shown.py::test_stacks_reach_into_inner_runs",
            "test_waiting.py::test_held_interpreter_is_told_with_native_stacks",
        ),
    ),
    Kind(
        "C",
        "false pass",
        "A rank that failed, died or never ran the test is reported as a pass.",
        "The end of every rank counts: its exit code, its signal, a status after the test, and so does a report that "
        "it did not make. A skip is a skip, a run in which nothing was selected fails, and a rerun hides no failure.",
        ("pytorch/pytorch#56390", "Lightning-AI/pytorch-lightning#10857"),
        (
            _guard(
                _acceptance("test_xdist.py::test_a_rank_that_is_killed"),
                "reporting/verdict.py",
                "Fate.DIED: Kind.DEATH,",
                "",
            ),
            _guard(
                _unit("test_verdict.py::test_skipped_when_all_ranks_skipped"),
                "reporting/verdict.py",
                'return PhaseVerdict("skipped", skip=skipped[0].longrepr)',
                'return PhaseVerdict("passed")',
            ),
            _guard(
                _acceptance("test_failures.py::test_a_rank_without_a_report_is_no_pass"),
                "engine/testrun.py",
                "progress.unreported = unreported(progress, setup_only=self._setup_only)",
                "pass",
            ),
            _guard(
                _unit("test_launching.py::test_status_0_before_the_end_is_a_failure"),
                "engine/launching.py",
                "(not self.has_told or self.process.exitcode != 0)",
                "self.process.exitcode != 0",
            ),
            _guard(
                _acceptance("test_standalone.py::test_nothing_ran_is_a_failure"),
                "selection/nothing_ran.py",
                "session.exitstatus = pytest.ExitCode.TESTS_FAILED",
                "pass",
            ),
            _guard(
                _acceptance("test_injected_faults.py::test_death_without_a_plan_is_a_failure"),
                "engine/progress.py",
                "return announced.exit_code is None or os.waitstatus_to_exitcode(event.status) == announced.exit_code",
                "return True",
            ),
            _guard(
                _acceptance(
                    "test_injected_faults.py::test_death_without_a_plan_is_a_failure"
                    "[test_a_child_of_a_rank_does_not_speak_for_it]"
                ),
                "engine/context.py",
                "return _current if os.getpid() == _pid else None",
                "return _current",
            ),
            _guard(
                _acceptance("test_injected_faults.py::test_nobody_left_is_a_failure"),
                "reporting/verdict.py",
                "if not deciding:",
                "if False:",
            ),
            _guard(
                _acceptance(
                    "test_injected_faults.py::test_fault_that_never_happened_on_ranks",
                    "test_injected_faults.py::test_fault_that_never_happened_in_plain_tests",
                ),
                "strategies/faults.py",
                "raise FaultNeverHappened(missing)",
                "pass",
            ),
        ),
        _acceptance(
            "test_failures.py::test_death_is_a_failure",
            "test_failures.py::test_status_after_the_test_counts",
            "test_endings.py::test_a_rank_that_dies_between_tests_is_reported",
            "test_other_harnesses.py::test_every_test_is_counted_once",
            "test_other_harnesses.py::test_standalone_run_is_counted",
            "test_other_harnesses.py::test_a_failure_poisons_no_class",
            "test_other_harnesses.py::test_reruns",
            "test_selection.py::test_required_devices",
        ),
    ),
    Kind(
        "D",
        "ports and stores",
        "Ports and stores collide: a guessed port is taken, a store file is a stale one.",
        "Every world has a store of its own on a new path, which is removed with it, and a port that is held for it. "
        "All ranks of a test have ended before the next one begins.",
        ("Lightning-AI/pytorch-lightning#21308", "pytorch/pytorch#13865"),
        (
            _guard(
                _acceptance("test_rendezvous.py::test_no_store_is_left"),
                "engine/worlds.py",
                "world.store.unlink(missing_ok=True)",
                "pass",
            ),
            _guard(
                _acceptance("test_rendezvous.py::test_nothing_of_a_failed_test_lingers"),
                "engine/worlds.py",
                "self._supervisor.end(living, TERM_S)",
                "pass",
            ),
        ),
        (
            *_acceptance(
                "test_rendezvous.py::test_twenty_worlds_in_a_row",
                "test_rendezvous.py::test_ten_groups_in_one_process",
                "test_rendezvous.py::test_four_workers_at_once",
            ),
            *_unit("test_rendezvous.py::test_nobody_else_can_bind_the_reserved_port"),
        ),
    ),
    Kind(
        "E",
        "launchers",
        "A launcher starts pytest again, or the world never forms.",
        "A body runs once on each rank and nowhere else. A strategy that would start pytest again is answered in "
        "standalone tests, and is an error that names the mark in others; one that would launch processes in a "
        "world is an error too.",
        ("Lightning-AI/pytorch-lightning#4397", "huggingface/transformers#7281"),
        (
            _guard(
                _acceptance("test_standalone.py::test_unmarked_relaunch_is_refused"),
                "strategies/launchers.py",
                "raise _refusal(self, rank)",
                "genuine(self)",
            ),
            _guard(
                _unit("test_multiprocess.py::test_launch_in_a_world_is_refused"),
                "strategies/multiprocess.py",
                "raise LaunchRefused(rank.nodeid, nprocs, rank.world_size)",
                "pass",
            ),
            _guard(
                _acceptance(
                    "test_trainer_factory.py::test_what_a_world_cannot_serve[spawn]",
                    "test_fabric_factory.py::test_launchers_are_refused[ddp_fork]",
                ),
                "strategies/fitting.py",
                'if isinstance(getattr(strategy, "launcher", None), launchers._MultiProcessingLauncher):',
                "if False:",
            ),
        ),
        _acceptance(
            "test_bodies.py::test_each_body_runs_once_per_rank",
            "test_bodies.py::test_what_works",
            "test_bodies.py::test_one_test_alone",
            "test_standalone.py::test_launching_works",
            "test_one_body.py::test_body_runs_in_every_way",
            "test_one_body.py::test_losses_are_equal",
        ),
    ),
    Kind(
        "F",
        "pickling and imports",
        "Tests can not be pickled, can not be imported again, or their patches do not reach the processes.",
        "Nothing is pickled: ranks are forked from a process that has imported the tests, and run test and fixtures "
        "themselves. A rank that can not start is an error with its text.",
        ("Lightning-AI/pytorch-lightning#9155", "pytest-dev/pytest#12178"),
        (
            _guard(
                _acceptance("test_bad_input.py::test_world_that_cannot_be_formed"),
                "engine/rank.py",
                "self.send(JoinFailed(traceback.format_exc()))",
                "pass",
            ),
            _guard(
                _unit(
                    "test_rendezvous.py::test_copy_of_the_environment_that_is_older_than_the_rank_keeps_its_variables"
                ),
                "engine/rendezvous.py",
                'if self.in_dict is os.environ and self.clear and "PYTEST_VERSION" in self.values:',
                "if False:",
            ),
        ),
        _acceptance(
            "test_inside_ranks.py::test_feature_works_on_every_rank",
            "test_inside_ranks.py::test_importlib_mode",
            "test_bodies.py::test_ranks_have_nothing_of_plain_tests",
            "test_bodies.py::test_what_works",
        ),
    ),
    Kind(
        "G",
        "leaking state",
        "State leaks from test to test: process groups, variables of launchers.",
        "What a test changes in its world is set back after it, and the test is named. Ranks see no variables of "
        "another launcher. A world whose group a test has destroyed is replaced.",
        ("Lightning-AI/pytorch-lightning#5651", "NovaSky-AI/SkyRL#1806"),
        (
            _guard(
                _acceptance("test_isolation.py::test_change_is_undone_in_the_same_processes[set variable]"),
                "engine/leak_guard.py",
                "self._leaks = self._isolation.end()",
                "self._leaks = []",
            ),
            _guard(
                _acceptance(
                    "test_what_trainers_leave.py::test_state_is_as_before[deterministic-plain]",
                    "test_what_trainers_leave.py::test_leaks_are_told_of[fabric-that stays so in the tests after it]",
                ),
                "plugin.py",
                'session.config.pluginmanager.register(watch, "disttest-makers")',
                "pass",
            ),
            _guard(
                _acceptance("test_fabric_factory.py::test_factory[test_group_is_gone]"),
                "strategies/making.py",
                "self.at_end(_destroy_group)",
                "pass",
            ),
            _guard(
                _acceptance("test_what_trainers_leave.py::test_state_is_as_before[rank-plain]"),
                "strategies/making.py",
                "module.rank_zero_only.rank = self._world.rank if before is None else before",
                "pass",
            ),
            _guard(
                _acceptance("test_bad_input.py::test_hostile_environment_changes_nothing"),
                "engine/rank.py",
                "rendezvous.hide_foreign_variables()",
                "pass",
            ),
            _guard(
                _acceptance("test_worlds.py::test_world_is_replaced_when_its_group_is_gone"),
                "engine/testrun.py",
                "self._world.healthy &= event.intact",
                "pass",
            ),
        ),
        _acceptance(
            "test_isolation.py::test_leak_is_told_of_once_at_its_test",
            "test_isolation.py::test_what_lightning_sets_is_set_back_silently",
            "test_what_trainers_leave.py::test_fixtures_are_respected",
            "test_bad_input.py::test_second_process_group",
            "test_worlds.py::test_dynamic_worlds_are_new",
        ),
    ),
    Kind(
        "H",
        "orphans and time limits",
        "Orphans and zombies are left, and time limits do not end what they should.",
        "Whatever ends, a test, a rank or pytest itself by kill -9, every process below it ends too. Ctrl-C and "
        "SIGTERM let fixtures end. The run after one that was stopped names the test that ran.",
        ("Lightning-AI/pytorch-lightning#2913", "pytest-dev/pytest-timeout#72"),
        (
            _guard(
                _acceptance("test_hostile_tests.py::test_children_of_ranks_end_with_a_killed_controller"),
                "engine/zygote.py",
                "processes.kill_orphans(keep=(), owner=None)",
                "pass",
            ),
            _guard(
                _acceptance("test_hostile_tests.py::test_fixtures_end_on_ctrl_c"),
                "engine/worlds.py",
                "self._supervisor.signal(handle, signal.SIGINT, group=False)",
                "pass",
            ),
            _guard(
                _acceptance("test_interrupts.py::test_sigterm[alone]"),
                "engine/termination.py",
                "signal.signal(signal.SIGTERM, self.handle)",
                "pass",
            ),
            _guard(
                _unit("test_launching.py::test_interrupt_ends_all"),
                "engine/launching.py",
                "        except BaseException:\n            self.end()\n",
                "        except BaseException:\n",
            ),
            _guard(
                _acceptance("test_stopped_runs.py::test_killed_in_the_middle_of_a_test[alone]"),
                "engine/journal.py",
                "self._nodeid, self._command, self._ranks = nodeid, command, ranks",
                "return",
            ),
        ),
        _acceptance(
            "test_endings.py::test_ctrl_c",
            "test_endings.py::test_children_of_ranks_are_ended",
            "test_endings.py::test_kill_9",
            "test_launched_ranks.py::test_ctrl_c",
            "test_launched_ranks.py::test_timer_of_pytest_timeout",
            "test_xdist.py::test_a_worker_that_is_killed_while_its_rank_hangs",
        ),
    ),
    Kind(
        "I",
        "early devices",
        "A device runtime is started too early, and no process forked from there can use it.",
        "Ranks are forked before any test runs. If test modules have started CUDA, XLA or a pool of threads at import, "
        "tests on ranks are errors that name these modules; this package itself touches no device.",
        ("pytorch/xla#9303", "deepspeedai/DeepSpeed#1987"),
        (
            _guard(
                _acceptance("test_endings.py::test_unsafe_fork_is_a_clear_error"),
                "engine/guard.py",
                'if ended != "exited with status 0":',
                "if False:",
            ),
            _guard(
                _acceptance("test_touched_devices.py::test_a_module_that_starts_xla_is_named"),
                "engine/guard.py",
                "if _xla_is_initialized():",
                "if False:",
            ),
        ),
        (
            *_acceptance(
                "test_touched_devices.py::test_a_plain_test_may_start_xla",
                "test_bodies.py::test_ranks_have_nothing_of_plain_tests",
            ),
            *_unit("test_devices.py::test_cuda_is_not_initialised_here", "test_guard.py::test_open_gpu_is_unsafe"),
        ),
    ),
    Kind(
        "J",
        "files",
        "Files: each rank has another tmp_path, or removes what others read; reports are overwritten.",
        "All ranks of a test share its tmp_path, which is there until the last one is done. There is one JUnit file "
        "with one entry per test. No hidden barrier makes a race for a folder pass. Loggers of all ranks have the same "
        "version.",
        ("vllm-project/llm-compressor#2857", "nest/nest-simulator#3193"),
        (
            _guard(
                _acceptance("test_shared_files.py::test_the_folder_is_there_for_the_slowest_rank"),
                "engine/pytest_in_rank.py",
                'setattr(tmp_path_factory(config), "_retention_policy", "all")',
                "pass",
            ),
            _guard(
                _acceptance(
                    "test_trainer_factory.py::test_slow_ranks_log_to_the_same_version[default-2]",
                    "test_trainer_factory.py::test_slow_ranks_log_to_the_same_version[csv-3]",
                ),
                "strategies/versions.py",
                "version = int(os.readlink(note))",
                "pass",
            ),
        ),
        _acceptance(
            "test_shared_files.py::test_a_race_for_a_folder_shows",
            "test_inside_ranks.py::test_feature_works_on_every_rank[test_tmp_path_is_shared]",
            "test_artefacts.py::test_one_entry_per_test",
        ),
    ),
    Kind(
        "K",
        "output",
        "Output of ranks is lost, doubled or mixed, or blocks them when a pipe is full.",
        "What a failed rank wrote and logged is in the report, with its number; with -s it is shown live. A test has "
        "one line, and no reporting hook runs on ranks.",
        ("laekov/fastmoe#206", "pytest-dev/pytest#3037"),
        (
            _guard(
                _acceptance("test_shown.py::test_the_log_is_that_of_the_failed_rank"),
                "reporting/merge.py",
                'suffix = f" (rank {story.rank})" if frame.world_size > 1 else ""',
                'suffix = ""',
            ),
            _guard(
                _acceptance("test_neighbours.py::test_reporting_hooks_run_in_the_controller_only"),
                "engine/pytest_in_rank.py",
                "HookSwitch(session, lambda _: reporting).on = True",
                "pass",
            ),
        ),
        _acceptance(
            "test_shown.py::test_one_line_per_test",
            "test_endings.py::test_live_output",
            "test_endings.py::test_megabytes_of_output_block_nobody",
        ),
    ),
    Kind(
        "L",
        "coverage",
        "Coverage of what ranks run is lost.",
        "Lines that ranks run are covered as if they had run in one process; without coverage nothing is measured.",
        ("coveragepy/coveragepy#1050", "pytorch/rl#3975"),
        (
            _guard(
                _acceptance("test_coverage.py::test_ranks_are_measured_like_calls[with_cov-static]"),
                "engine/controller.py",
                "measuring.take_over(self._pool.folder)",
                "pass",
            ),
        ),
        _acceptance("test_coverage.py::test_off_costs_nothing"),
    ),
    Kind(
        "M",
        "too few devices",
        "More ranks are asked for than there are devices or cores.",
        "Of several world sizes those are skipped that need more GPUs than are visible, with both numbers; ranks share "
        "the cores.",
        ("pytorch/pytorch#146094", "deepspeedai/DeepSpeed#2799"),
        (
            _guard(
                _acceptance("test_kept_worlds.py::test_only_the_sizes_that_do_not_fit_are_skipped"),
                "selection/requirements.py",
                "(present := count_gpus()) < plan.world_size:",
                "(present := count_gpus()) < 1:",
            ),
        ),
        _acceptance(
            "test_inside_ranks.py::test_feature_works_on_every_rank[test_threads_are_shared_out]",
            "test_selection.py::test_what_a_plain_run_skips",
        ),
    ),
    Kind(
        "N",
        "slow or stale ranks",
        "Starting ranks for each test is slow, and ranks that are used again carry over failures, grow or hang.",
        "A static world is made once and serves all its tests; after a failure it is replaced; its end has a limit.",
        ("Lightning-AI/torchmetrics#1544", "NVIDIA/TensorRT-LLM#15777"),
        (
            _guard(
                _acceptance("test_worlds.py::test_static_world_is_reused"),
                "engine/worlds.py",
                "self._kept[world.spec] = world",
                "self.end(world)",
            ),
            _guard(
                _acceptance("test_kept_worlds.py::test_a_failed_world_is_not_used_again"),
                "engine/testrun.py",
                "elif any(not report.passed and not _is_plain_skip(report) for report in progress.reports):",
                "elif False:",
            ),
        ),
        _acceptance(
            "test_worlds.py::test_world_is_replaced_after_a_failure",
            "test_kept_worlds.py::test_three_hundred_tests_in_one_world",
            "test_kept_worlds.py::test_the_end_of_a_world_has_a_limit",
            "test_hostile_tests.py::test_a_hanging_fixture_end_has_the_limit_of_its_test",
        ),
    ),
    Kind(
        "O",
        "one test alone",
        "One test or one rank is hard to look at by itself.",
        "The report of a failure prints the one command that runs that test again, alone and as it ran. A debugger on "
        "a rank, which has no terminal, fails its test and leaves nobody stuck.",
        ("Lightning-AI/pytorch-lightning#21667", "pytorch/pytorch#154563"),
        (
            _guard(
                _acceptance("test_bodies.py::test_one_test_alone[id]"),
                "engine/rank.py",
                "pytest_in_rank.name_single_test(item)",
                "pass",
            ),
            _guard(
                _acceptance("test_run_alone.py::test_command_runs_exactly_that_test[standalone by variable]"),
                "reporting/merge.py",
                "report.longrepr = _add_command(describe_failure(verdict, frame, finished), frame.command)",
                "report.longrepr = describe_failure(verdict, frame, finished)",
            ),
        ),
        _acceptance(
            "test_bodies.py::test_a_failed_test_runs_alone_by_the_id_that_is_shown",
            "test_one_rank_fails.py::test_a_debugger_without_a_terminal_ends",
        ),
    ),
    Kind(
        "Q",
        "results stay behind",
        "Results stay in the processes: asserts see the launching process's copy.",
        "The body runs on the ranks, so its asserts see the real objects; values that ranks record are compared, with "
        "each other and, if the test asks for it, with those of the same body on one process.",
        ("Lightning-AI/pytorch-lightning#10896", "Lightning-AI/pytorch-lightning#7916"),
        (
            _guard(
                _acceptance("test_hostile_tests.py::test_a_tensor_of_another_type_is_another_value"),
                "reporting/verdict.py",
                'elif verdicts["call"].outcome == "passed" and (table := compare_records(deciding)):',
                "elif (table := compare_records(deciding)) and False:",
            ),
            _guard(
                _unit("test_leaves.py::test_what_has_no_tolerance"),
                "reporting/leaves.py",
                "or describe_kind(actual) != describe_kind(expected)",
                "",
            ),
            _guard(
                _acceptance("test_comparing.py::test_gradients_that_are_not_divided_are_found"),
                "engine/one_process.py",
                "table = compare_with_one_process(stories, alone[0].records)",
                'table = ""',
            ),
            _guard(
                _acceptance("test_one_process.py::test_what_goes_wrong_on_one_process_is_told"),
                "engine/one_process.py",
                'if any(verdict.outcome != "passed" for verdict in verdicts.values()):',
                "if False:",
            ),
            _guard(
                _acceptance("test_checkpoints.py::test_a_sharded_tensor_is_refused"),
                "engine/recording.py",
                "if _is_sharded(tensor):",
                "if False:",
            ),
        ),
        _acceptance(
            "test_bodies.py::test_what_works[test_results]",
            "test_trainer_factory.py::test_one_body_in_every_world",
            "test_comparing.py::test_ranks_train_as_one_process_does",
            "test_checkpoints.py::test_checkpoints_are_loaded",
        ),
    ),
    Kind(
        "R",
        "other tests on each rank",
        "Ids or the order of tests differ from process to process.",
        "Tests are collected once; ranks are told which one to run, and have the same parameters and hash seed.",
        ("tenstorrent/tt-metal#36910", "torch-spyre/torch-spyre#2792"),
        (
            _guard(
                _acceptance("test_bodies.py::test_ranks_agree_on_parameters[static]"),
                "engine/rank.py",
                "item = items[message.index]",
                "item = items[(message.index + self._request.rank) % len(items)]",
            ),
        ),
    ),
)

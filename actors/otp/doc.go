// Package otp is OTP in small: servers, supervisors, names and monitors with the
// words and the behaviour of Erlang's gen_server and supervisor and of Elixir's
// DynamicSupervisor and Task. It knows nothing of takt.
//
//	OTP                              here
//	gen_server                       [Server], embed [Base]; [BatchServer] for group commit
//	call, cast, reply, noreply       [Call], [Cast], [From.Reply], [NoReply]
//	{stop, Reason, ...}              [Ctx.Stop]
//	send_after, monitor              [Ctx.SendAfter], [Ctx.Monitor] → [Down]
//	Task, proc_lib                   ChildSpec.Task; in the caller's goroutine: [RunTask]
//	register, whereis                ChildSpec.Name, [System.Whereis], [System.Ref]
//	child_spec, sup_flags            [ChildSpec], [SupSpec]
//	simple_one_for_one               [Dynamic], [StartDynamic]
//	start_child and friends          [StartChild], [TerminateChild], [RestartChild], [DeleteChild],
//	                                 [WhichChildren], [CountChildren]
//	(none)                           [RestartRunning], the operator's restart
//	exit(Pid, R), exit(Pid, kill)    [Proc.Exit], [Proc.Kill]
//	normal, shutdown, {shutdown, T}  [ErrNormal], [ErrShutdown], [Shutdown]
//
// # State
//
// A [System] holds the names and the roots of the supervision trees. A process
// ([Proc]) is one incarnation: it is never reused, a restart makes a new one with
// a new mailbox under the same name. A [Ref] is a name, resolved at each use. A
// Server's own fields belong to one incarnation, and so do its timers, monitors
// and Async goroutines.
//
// # Failure
//
// A panic (or runtime.Goexit) in a callback ends the process with that reason;
// its supervisor decides what follows, exactly as OTP's does: the traces in
// testdata/vectors were recorded from the real one and are replayed by a test.
// A failed restart is retried behind what has arrived meanwhile and counts
// again; a supervisor that exceeds its intensity stops its children and ends
// with ErrShutdown. A call to a process that is not there, or ends before it
// replies, fails at once with a [*DownError]; it never waits for its timeout.
// Every start, end, restart and give-up is an [Event].
//
// # Concurrency
//
// Callbacks of one process run one at a time, messages in order of arrival. A
// supervisor does nothing else while it starts or stops a child. Everything on
// [System], [Proc], [Ref] and [From] may be used from any goroutine; a [Ctx]
// only inside callbacks of its process. A process that calls itself, its own
// supervisor from Init or Terminate, or in a circle, waits for the timeout.
//
// # Stopping
//
// An order to end lets the running callback finish and overtakes what is queued
// (ChildSpec.Drain: waits its turn, as it always does for supervisors); callers
// in the queue get a DownError. Then Terminate runs. When the shutdown time is
// over the process is killed: [Ctx.Context], or a task's context, is cancelled.
// Go cannot stop a goroutine, so what does not return within the grace is
// abandoned: it counts as dead for everybody, its name is free, its timers and
// its mailbox are gone, and it is shown as leaked until it returns. Whoever may
// be abandoned must fence its writes: its successor runs already.
//
// # Deviations from OTP
//
//   - A stuck process is abandoned, not killed (above).
//   - Every Server traps exits: Terminate runs for every end but a kill. It may
//     take the shutdown time even if the process ends by itself.
//   - A shutdown time of 0 means the default; OTP's 0 is [BrutalKill].
//   - A name is shown when Init has succeeded, not before; it is free before the
//     supervisor learns of the end.
//   - Children of a supervisor that was killed get its reason as in OTP, but lose
//     their names at once, so that their successors can start, and are killed
//     themselves if they have not ended after 10 s.
//   - A reason that carries the end of another process (a DownError, a panic with
//     such a value) is a failure, even if that process ended with shutdown: a
//     transient child is restarted. In Erlang {shutdown, {gen_server, call, ...}}
//     is not.
//   - Two accidents of OTP 25 are not repeated: an instance whose restart is
//     ignored is removed (there it stays as a nameless entry that crashes the
//     supervisor's shutdown), and one that is terminated while it is restarting
//     does not spoil the count of active children.
//   - There are no links but the one to the supervisor. Use monitors.
//
// # protoactor
//
// protoactor is the engine of the servers: an actor each, messages by its PIDs, a
// receiver middleware that counts them and their time ([Proc.Handled]; a batch is
// one). A parcel comes back from the mailbox with its answer, so that a full or
// dead process refuses at once. A call takes 0.2 to 0.35 of a RequestFuture. Its
// supervision (in place, all children at once), futures (learn of a crash by
// timeout) and mailboxes (cannot refuse) are not used. Only engine.go knows it.
package otp

// Package otp runs actors under supervisors, in the style of Erlang/OTP: servers with a
// mailbox, supervisors that restart them, names and monitors. Its terms and behaviour are
// those of Erlang's gen_server and supervisor, and of Elixir's DynamicSupervisor and Task. It
// does not depend on the rest of takt.
//
//	OTP                              here
//	gen_server                       [Server], embed [Base]; [BatchServer] for group commit
//	call, cast, reply, noreply       [Call], [Cast], [From.Reply], [NoReply]
//	{stop, Reason, ...}              [Ctx.Stop]
//	send_after, monitor              [Ctx.SendAfter], [Ctx.Monitor] → [Down]
//	(none)                           [Job]: one piece of work at a time beside a server
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
// ([Proc]) is one incarnation and is never reused: a restart makes a new one with
// a new mailbox under the same name. A [Ref] is a name, resolved at each use. A
// Server's own fields belong to one incarnation, and so do its timers, monitors
// and Async goroutines.
//
// # Failure
//
// A panic (or runtime.Goexit) in a callback ends the process with that reason;
// its supervisor decides what follows, exactly as OTP's does: a test replays the
// traces in testdata/vectors, which were recorded from Erlang/OTP. A failed
// restart is retried after the messages that have arrived meanwhile, and the retry
// counts again. A supervisor that exceeds its intensity stops its children and ends
// with ErrShutdown. A call to a process that is not there, or ends before it
// replies, fails at once with a [*DownError]; it never waits for its timeout.
// Every start, end, restart and give-up is an [Event].
//
// # Concurrency
//
// Callbacks of one process run one at a time, messages in order of arrival. A
// supervisor does nothing else while it starts or stops a child. All methods of
// [System], [Proc], [Ref] and [From] may be used from any goroutine; a [Ctx]
// only inside callbacks of its process. A call waits for its timeout if a process
// calls itself, if it calls its own supervisor from Init or Terminate, or if calls
// form a cycle.
//
// # Stopping
//
// When a process is told to end, the running callback finishes, then Terminate runs. Queued
// messages are not handled, and their callers get a DownError. A supervisor, as in OTP, first
// handles the requests that are queued. When the shutdown time is over, the process is killed:
// [Ctx.Context], or a task's context, is cancelled. Go can't stop a goroutine, so a process
// that does not return within [KillGrace] is abandoned: it counts as dead, its name is free,
// its timers and its mailbox are gone, and the tree shows it as leaked until it returns. The
// writes of a process that may be abandoned must be harmless after its successor has started.
//
// # Deviations from OTP
//
//   - A stuck process is abandoned, not killed (above).
//   - Every Server traps exits: Terminate runs for every end but a kill. It may
//     take up to the shutdown time even if the process ends by itself.
//   - A shutdown time of 0 means the default; OTP's 0 is [BrutalKill].
//   - A name becomes visible when Init has succeeded, not before. It is free before
//     the supervisor gets the message of the end.
//   - Children of a supervisor that was killed get its reason as in OTP, but lose
//     their names at once, so that their successors can start. They are killed if
//     they have not ended after 10 s.
//   - A reason that carries the end of another process (a DownError, a panic with
//     such a value) is a failure, even if that process ended with shutdown, so a
//     transient child is restarted. In Erlang {shutdown, {gen_server, call, ...}}
//     is no failure.
//   - Two bugs of OTP 25 are not repeated. An instance whose restart is ignored is
//     removed (there it stays as a nameless entry that crashes the supervisor's
//     shutdown). An instance that is terminated while it is restarting does not
//     spoil the count of active children.
//   - The only link is the one to the supervisor. Use monitors.
//
// # protoactor
//
// Servers are actors of protoactor: its PIDs address the messages, and a receiver
// middleware counts messages and the time that they take ([Proc.Handled]). Posting a
// message returns its result, so a full or dead process refuses it immediately. A call
// takes 0.2 to 0.35 of the time of a RequestFuture. Three parts of protoactor are not
// used: its supervision (restarts in place, stops all children at once), its futures (a
// crash becomes a timeout) and its mailboxes (they can't refuse). Only engine.go imports
// it.
package otp

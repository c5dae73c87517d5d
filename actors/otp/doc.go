// Package otp is OTP in small: servers, supervisors, names and monitors with the
// words and the behaviour of Erlang's gen_server and supervisor and of Elixir's
// DynamicSupervisor and Task. It knows nothing of takt.
//
// # State
//
// A [System] holds the names and the roots of the supervision trees. A process
// ([Proc]) is one incarnation: it is never reused, a restart makes a new one
// under the same name. A [Ref] is a name, resolved at each use.
//
// # Failure
//
// A panic in a callback ends the process; its supervisor decides what follows.
// A call to a process that is not there, or ends before it replies, fails at
// once with a [*DownError].
//
// # Concurrency
//
// Callbacks of one process run one at a time. Everything on [System], [Proc],
// [Ref] and [From] may be used from any goroutine; a [Ctx] only inside callbacks
// of its process.
package otp

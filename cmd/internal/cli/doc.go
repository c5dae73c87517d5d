// Package cli contains what the commands share: how they are run ([Row] for those that make one
// call, [Command] for the others), exit codes and error
// texts, output for people and for programs, progress bars, and the store of build tokens.
//
// # State
//
// [Tokens] keeps one small file per submitted build. Only its owner can read it.
//
// # Failure
//
// [ExitCode] gives each kind of failure its own exit code. [Message] returns the text
// that a person should see.
//
// # Concurrency
//
// Values must not be shared between goroutines. Several processes may use the same token
// directory at once.
package cli

// Package cli is what the commands share: how they are run, exit codes and error
// texts, output for people and for programs, progress bars, the store of build
// tokens, and the packing of source directories.
//
// # State
//
// [Tokens] keeps one small file per submitted build, readable by its owner only.
//
// # Failure
//
// [ExitCode] gives each kind of failure its own exit code, [Message] the text
// that a person should see.
//
// # Concurrency
//
// Values are not shared between goroutines. Several processes may use the same
// token directory at once.
package cli

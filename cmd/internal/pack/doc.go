// Package pack decides which files of a directory are the source of a build, writes them as a zip
// archive, and says which commit they are.
//
// In the working tree of a git repository they are the files that git tracks or would add, as they
// are on disk: [List] asks git. Elsewhere they are those that no .gitignore names. A .taktignore in
// the directory wins over both.
//
// # Why
//
// The patterns of .taktignore, and of .gitignore outside of git, are matched here, and a test compares
// the matches with those of git itself. The matcher of go-git, which would bring four modules, reads
// [!a] as [a] (its issue 2006), knows no [[:alpha:]], lets "!logs" bring back logs/a.log although "*.log"
// names it, and does not find a/b/x/b/c for "/a/**/b/c".
//
// # State
//
// None.
//
// # Failure
//
// What git can't say is an error, never a reason to pack more. So is a file that changes while it
// is packed, and all that a worker would refuse to unpack.
//
// # Concurrency
//
// A [Tree] must not be shared between goroutines.
package pack

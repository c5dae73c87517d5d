// Package storage keeps the bytes of builds: sources, certificates, results.
// It knows names, sizes and digests, but neither builds' states nor HTTP.
//
// A file arrives in three steps, so that a transaction can decide about it:
// [Local.Create] streams it to a unique temporary name, [Upload.Finish] makes
// its content durable, [Upload.Place] gives it its name. Place is meant to be
// called inside the database transaction that records the file; whoever
// doesn't get that far calls [Upload.Discard].
//
// # State
//
// A directory tree, reached only through an [os.Root], so that no name can
// lead out of it: builds/<id>/… and diagnostics/<worker>/… for what is kept,
// tmp/ for what is arriving. All are on one file system, because Place is a
// rename. Directories are 0700, files 0600. Certificates are sealed (see seal.go); their digest and
// size are those of the plain content.
//
// # Failure
//
// A full disk is [store.DiskFull], content over its limit [store.TooLarge];
// both leave nothing behind after Discard. A crash leaves temporary files,
// which [Local.SweepTemporary] removes.
//
// # Concurrency
//
// A [Local] may be used by many goroutines; an [Upload] and a [File] belong to
// one.
package storage

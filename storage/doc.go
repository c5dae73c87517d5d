// Package storage keeps the bytes of builds: sources, certificates, results.
// It knows names, sizes and digests, but neither builds' states nor HTTP.
//
// A file arrives in four steps, so that a transaction can decide about it:
// [Files.Create] streams it to a unique temporary name on the local disk,
// [Upload.Finish] makes its content durable, [Upload.Send] takes it to S3 under a
// key that nothing ever had, if files go there, and [Upload.Commit] gives it its
// local name, if they stay. Commit is meant to be called inside the database
// transaction that records the file; [Upload.Settle] is told how that ended, and
// [Upload.Discard] removes what no row names.
//
// # State
//
// A directory tree, reached only through an [os.Root], so that no name can
// lead out of it: builds/<id>/… and diagnostics/<worker>/… for what is kept,
// tmp/ for what is arriving. All are on one file system, because Commit is a
// rename. Directories are 0700, files 0600. Certificates are sealed
// ([seal.Ring]); their digest and size are those of the plain content.
//
// Objects in S3 hold the same bytes, sealed ones included, under keys that only
// rows know. [S3] remembers how the server did when it was last asked.
//
// # Failure
//
// A full disk is [store.DiskFull], content over its limit [store.TooLarge];
// both leave nothing behind after Discard. A crash leaves temporary files,
// which [Local.SweepTemporary] removes, and objects without a row. An S3 that
// is away, hangs or refuses is [store.Unavailable]; with [ModeDual] it is only a
// copy that is owed. A transfer that stands still is given up.
//
// # Concurrency
//
// [Files], [Local] and [S3] may be used by many goroutines; an [Upload] and a
// [File] belong to one.
package storage

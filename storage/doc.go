// Package storage keeps the bytes of builds: sources, certificates, results.
// It knows names, sizes and digests, but neither builds' states nor HTTP.
//
// [Files.Create] takes in a whole file: it streams it to a unique temporary name on
// the local disk and makes it durable. [Upload.Commit] makes that a file that a row
// names. It first takes it to S3, if files go there, under a key that nothing ever had.
// Then its caller runs the database transaction that records the file, and within it
// gives it its local name. [Upload.Discard] removes what was not committed.
//
// # State
//
// A directory tree, reached only through an [os.Root], so that no name can
// lead out of it: builds/<id>/… and diagnostics/<worker>/… for what is kept,
// tmp/ for what is arriving. All are on one file system, because the local name is
// given by a rename. Directories are 0700, files 0600. Certificates are sealed
// ([seal.Ring]); their digest and size are those of the plain content.
//
// Objects in S3 hold the same bytes, sealed ones included, under keys that only
// rows know. [S3] remembers how the server did when it was last asked.
//
// # Failure
//
// A full disk is [store.DiskFull], content over its limit [store.TooLarge];
// both leave nothing behind. A crash leaves temporary files,
// which [Local.SweepTemporary] removes, and objects without a row. An S3 that
// is away, hangs or refuses is [store.Unavailable]; with [ModeDual] it is only a
// copy that is owed. A transfer that stands still is given up.
//
// # Concurrency
//
// [Files], [Local] and [S3] may be used by many goroutines; an [Upload] and a
// [File] belong to one.
package storage

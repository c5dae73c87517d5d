// Package storage keeps the bytes of builds: sources, certificates, results.
// It knows names, sizes and digests, but neither builds' states nor HTTP.
//
// [Files.Create] receives a whole file: it streams the file to a unique temporary name
// on the local disk and makes it durable. [Upload.Commit] makes the upload a file that
// a row names. If files go to S3, it first stores the file there under a new key. Then
// its caller runs the database transaction that records the file, and within it gives
// the file its local name. A file of a new build has it from the beginning
// ([Files.CreateNew]). [Upload.Discard] removes an upload that was not committed.
//
// # State
//
// A directory tree, opened as an [os.Root], so that no name can lead out of it:
// builds/<id>/… and diagnostics/<worker>/… hold committed files, and those of new builds
// before a row names them. tmp/ holds all other uploads. All are on one file system,
// because a rename gives a file its local name. Directories are 0700, files 0600.
// Certificates are sealed ([seal.Ring]); their digest and size are those of the plain
// content.
//
// Objects in S3 hold the same bytes, sealed where the file is sealed. Only rows name
// their keys. [S3] remembers the result of its last request.
//
// # Failure
//
// A full disk is [store.DiskFull], content over its limit [store.TooLarge]; both leave
// no files. A crash leaves temporary files, which [Local.SweepTemporary] removes, and
// files and objects without a row. An S3 that is down, hangs or refuses is
// [store.Unavailable]. With [ModeDual] such an S3 only delays the second copy. A
// transfer without progress is cancelled.
//
// # Concurrency
//
// [Files], [Local] and [S3] may be used by many goroutines; an [Upload] and a
// [File] belong to one.
package storage

// Package storage stores the files of builds (sources, certificates, results) on the
// local disk, in S3, or in both. It is independent of builds' states and of HTTP.
//
// An upload has three steps. [Files.Create] streams the file to a unique temporary name
// on the local disk and syncs it. [Upload.Stage] stores it in S3 under a new key, if files
// go there, and describes it for its database row. Within the transaction that writes the
// row, [Upload.Commit] renames the local file to its final name. A file of a new build has
// its final name from the beginning ([Files.CreateNew]). [Upload.Discard] removes an upload
// that was not staged, [Upload.Abort] one that was.
//
// # State
//
// A directory tree, opened as an [os.Root], so that no name can escape from it.
// builds/<id>/… and diagnostics/<worker>/… hold committed files, and the files of new
// builds until their database row is committed. tmp/ holds all other uploads. The tree is
// on one file system, because files are committed by a rename. Directories are 0700, files 0600.
// Certificates are sealed ([seal.Ring]); their digest and size are those of the plain
// content.
//
// Objects in S3 hold the same bytes, sealed if the file is sealed. Their keys are known
// only from the database. [S3] keeps the result of its last request.
//
// # Failure
//
// A full disk is [store.DiskFull], content over its limit [store.TooLarge]; both leave
// no files. A crash may leave temporary files, which [Local.SweepTemporary] removes, and
// files and objects without a row. If S3 is down, hangs or refuses a request, the error is
// [store.Unavailable]; with [ModeDual] this only delays the second copy. A transfer
// without progress is cancelled.
//
// # Concurrency
//
// [Files], [Local] and [S3] may be used by many goroutines; an [Upload] and a
// [File] belong to one.
package storage

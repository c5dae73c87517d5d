package store

import "context"

// Location is where a stored file is.
type Location string

// The locations. The zero value is OnDisk.
const (
	OnDisk Location = "local" // on a controller's disk
	InS3   Location = "s3"
	InBoth Location = "both"
)

// Local reports whether the file is on a controller's disk.
func (l Location) Local() bool { return l != InS3 }

// Remote reports whether the file is in S3.
func (l Location) Remote() bool { return l == InS3 || l == InBoth }

// File describes a stored file.
type File struct {
	// Name is the path in storage, such as builds/<id>/source.zip.
	Name string
	// Size is in bytes.
	Size int64
	// SHA256 is the digest of the content as it was sent.
	SHA256 [32]byte
	// Location is where it is.
	Location Location
	// Object is its key in S3, which is never reused; "" if the file is not in S3.
	Object string
	// CopyPending is true while the copy in S3 is still missing.
	CopyPending bool
}

// Staged is a file that is durable but not yet visible. The method that gets it, along
// with the row that describes it, settles it: it calls Commit before the row is visible,
// and Abort once it is certain that no row will be. If the outcome is unknown
// ([ErrOutcomeUnknown]) the file stays.
type Staged interface {
	// Rename makes the file visible under its name, but not yet durably. It is optional: Commit
	// does the same. It may be called again.
	Rename() error
	// Commit makes the file visible under its name, durably. It may be called again.
	Commit(ctx context.Context) error
	// Abort removes the file, also after Commit.
	Abort(ctx context.Context)
}

// FileKey names the row of a file.
type FileKey struct {
	// Build is the number of the build in the database.
	Build int64
	Kind  FileKind
}

// FileRow is a file and the build that it belongs to.
type FileRow struct {
	FileKey
	BuildID string
	File
}

// Sealed reports whether the file is sealed in storage.
func (r FileRow) Sealed() bool { return r.Kind == CertsFile }

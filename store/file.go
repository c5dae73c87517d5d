package store

// Location is where a stored file is.
type Location string

// The locations. The zero value is OnDisk.
const (
	OnDisk Location = "local" // on a controller's disk
	InS3   Location = "s3"
	InBoth Location = "both"
)

// Local reports whether a controller's disk has the file.
func (l Location) Local() bool { return l != InS3 }

// Remote reports whether S3 has the file.
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
	// Object is its key in S3, which no other file ever had; "" if it is not
	// there.
	Object string
	// CopyPending says that a copy in S3 is owed.
	CopyPending bool
}

// FileKey names the row of a file.
type FileKey struct {
	// Build is the number of the build, as the database counts.
	Build int64
	Kind  FileKind
}

// FileRow is a file with what it belongs to.
type FileRow struct {
	FileKey
	BuildID string
	File
}

// Sealed reports whether the file is unreadable at rest.
func (r FileRow) Sealed() bool { return r.Kind == CertsFile }

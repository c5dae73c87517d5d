package storage

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain ignores minio's attempts to abort an upload to a server that is gone, which outlive
// the call that gave up by some seconds.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/minio/minio-go/v7.(*Client).abortMultipartUpload"))
}

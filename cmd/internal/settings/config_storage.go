package settings

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"takt/storage"
	"takt/store/seal"
)

// UsesS3 reports whether a bucket is configured, even if it is only read from.
func (c *Config) UsesS3() bool { return c.Storage != string(storage.ModeLocal) || c.S3.Endpoint != "" }

func (c *Config) validateStorage() error {
	switch {
	case storage.Mode(c.Storage).Valid() && c.UsesS3():
		return c.S3.Validate()
	case storage.Mode(c.Storage).Valid():
		return nil
	case strings.ContainsAny(c.Storage, `./`): // in the original, --storage names a directory
		return fmt.Errorf("storage: want local, s3 or dual, not %q; the directory of the files is data-dir", c.Storage)
	}
	return fmt.Errorf("storage: %q is not known: local, s3 or dual", c.Storage)
}

// OpenFiles opens the storage of builds' files. It sends no request to S3.
func OpenFiles(cfg Config, keys *seal.Ring) (*storage.Files, error) {
	local, err := storage.OpenLocal(filepath.Join(cfg.DataDir, "files"), keys)
	if err != nil {
		return nil, err
	}
	var s3 *storage.S3
	if cfg.UsesS3() {
		if s3, err = storage.OpenS3(cfg.S3); err != nil {
			return nil, errors.Join(err, local.Close())
		}
	}
	return storage.NewFiles(storage.Mode(cfg.Storage), local, s3)
}

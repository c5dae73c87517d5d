package cli

import (
	"runtime/debug"
)

// linkedRelease and linkedCommit are what the linker wrote into main; see Built.
var linkedRelease, linkedCommit string //nolint:gochecknoglobals // said once, by main

// Built says what the linker wrote into main: the release and the commit that this program is.
func Built(release, commit string) { linkedRelease, linkedCommit = release, commit }

// Version returns the release, or what the go command recorded of a build without one.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	switch {
	case linkedRelease != "":
		return linkedRelease
	case ok && info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	return "devel"
}

// Revision returns the commit that this program was built from, or "" if it is not known.
func Revision() string {
	info, ok := debug.ReadBuildInfo()
	if linkedCommit != "" || !ok {
		return linkedCommit
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

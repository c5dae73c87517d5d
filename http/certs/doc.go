// Package certs takes signing files out of the zip archive that a submitter
// sent: a PKCS #12 file, its password, and provisioning profiles.
//
// # State
//
// None.
//
// # Failure
//
// An archive that is damaged, that has no PKCS #12 file, or that looks like an
// attack is refused as a whole: names that lead elsewhere, symbolic links, more
// bytes than allowed when unpacked. Sizes in the archive's directory are
// believed only when they speak against it; what counts is what was read.
//
// # Concurrency
//
// [Unpack] keeps nothing and may be called by any goroutine.
package certs

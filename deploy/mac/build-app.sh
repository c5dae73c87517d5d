#!/bin/sh
# A build command for takt worker --exec on a Mac: it signs in a keychain of its own, which it
# deletes at the end, and exports the app of the source's workspace. Change SCHEME, and
# ExportOptions.plist in the source.
set -eu

keychain=$TMPDIR/build.keychain-db
password=$(uuidgen)
before=$(security list-keychains -d user | tr -d '"')
finish() {
	# shellcheck disable=SC2086 # one argument for each keychain
	security list-keychains -d user -s $before
	security delete-keychain "$keychain" || true
}
if [ -n "${TAKT_CERTS-}" ]; then
	trap finish EXIT
	trap 'exit 1' TERM INT
	security create-keychain -p "$password" "$keychain"
	security set-keychain-settings -lut 21600 "$keychain"
	security unlock-keychain -p "$password" "$keychain"
	for p12 in "$TAKT_CERTS"/*.p12; do
		security import "$p12" -k "$keychain" -P "$(cat "$TAKT_CERTS/password.txt")" -T /usr/bin/codesign
	done
	# Otherwise codesign would ask at the screen.
	security set-key-partition-list -S apple-tool:,apple: -s -k "$password" "$keychain" >/dev/null
	# shellcheck disable=SC2086
	security list-keychains -d user -s "$keychain" $before
	profiles=$HOME/Library/Developer/Xcode/UserData/Provisioning\ Profiles
	mkdir -p "$profiles"
	for profile in "$TAKT_CERTS"/*.mobileprovision; do
		[ ! -e "$profile" ] || cp "$profile" "$profiles/"
	done
fi

xcodebuild -workspace ./*.xcworkspace -scheme "${SCHEME:-App}" -configuration Release \
	-derivedDataPath "$TMPDIR/derived" -archivePath "$TMPDIR/app.xcarchive" archive
xcodebuild -exportArchive -archivePath "$TMPDIR/app.xcarchive" \
	-exportOptionsPlist ExportOptions.plist -exportPath "$TMPDIR/export"
mv "$TMPDIR"/export/*.ipa "$TAKT_OUTPUT"

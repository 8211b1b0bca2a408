// Package keyed changes the key that all speakers share: any two of them understand each other at every moment, whoever
// starts, stops or edits the Secret in between. It is pure: the time and all that was read are arguments.
//
// The entry key of the Secret is the key that its owner wants. The entry in-use is the key that speakers send with.
// Only the controller writes it, so that no speaker sends with a new key just because it was the first to read it.
// Every entry that is a key is accepted.
//
//   - The controller takes a step when the Secret has been unchanged for five minutes: speakers look once a minute. The
//     first step puts the wanted key in use, and the former one stays an entry; the second drops that. If the key in
//     use is removed, the controller puts it back at once.
//   - A speaker sends with the key in use. Running speakers need no controller: without a key in use they send with the
//     wanted key when the Secret has been unchanged for a minute and a half. They accept former entries until it has
//     been unchanged for five, so that any entry may go.
//   - A speaker that starts knows nothing but the Secret, and waits for a key in use.
//
// No time is kept in the Secret: a controller that starts in the middle counts from there, and a longer wait does no
// harm. All of this holds for speakers that reach the API server; one that does not for a minute and a half misses
// changes. It does not hold for an owner who writes another key as in-use.
package keyed

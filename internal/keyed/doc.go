// Package keyed authenticates packets between speakers with the key that all of them share, and changes that key: any two
// speakers understand each other at every moment, whoever starts, stops or edits the Secret in between. The change is
// pure: the time and all that was read are arguments.
//
// The entry key of the Secret is the key that its owner wants. The entry in-use is the key that speakers send with. Only
// the controller writes it, so that no speaker sends with a new key just because it was the first to read it. Every
// entry that is a key is accepted.
//
//   - The controller puts the wanted key in use when the Secret has been unchanged for two minutes: speakers look once
//     a minute, so every speaker accepts it by then. The former key stays an entry until the Secret has been unchanged
//     for four minutes: every speaker sends with the new one by then. If somebody removes the key in use, the controller
//     puts it back at once.
//   - A speaker sends with another key when the Secret has been unchanged for two minutes, and accepts former entries
//     until it has been unchanged for four. So running speakers need no controller, and any entry may go.
//   - A speaker that starts knows nothing but the Secret, and trusts its key in use. Without one, it waits until the
//     Secret has been unchanged for four minutes.
//
// No time is kept in the Secret: a controller that starts in the middle counts from there, and a longer wait does no
// harm. All of this holds for speakers that reach the API server; one that does not for a minute and a half misses
// changes. It does not hold for an owner who writes another key as in-use.
package keyed

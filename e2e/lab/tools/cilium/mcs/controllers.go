// Package controllers stands in for the module of its name, which no module proxy holds: Cilium's operator
// takes one name from it.
package controllers

// DerivedServiceAnnotation names the Service that a ServiceImport of several clusters is served by.
const DerivedServiceAnnotation = "multicluster.kubernetes.io/derived-service"

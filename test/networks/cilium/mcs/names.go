// Package controllers replaces the package of this path in the Multi-Cluster Services API, which the module
// proxy does not have. Cilium takes two names from it.
package controllers

// DerivedServiceAnnotation is the annotation of a ServiceImport with the name of its Service.
const DerivedServiceAnnotation = "multicluster.kubernetes.io/derived-service"

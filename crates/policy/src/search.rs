//! `web_search`: a run that asks may search the web, by one of the built-in providers for it. Which one is told by the credentials that
//! are stored, so that one policy serves whoever has any of them. A run that does not ask reaches none. S4.42, S4.43, S4.63.

use crate::error::ConfigError;
use crate::layer::Layers;
use crate::origin::Origin;
use crate::preset::web_searches;

impl Layers {
    /// Whether the last layer that speaks of web search asks for it, and no layer names a provider of it: which it is, is for
    /// [`choose_search`](Self::choose_search) to say then.
    ///
    /// # Errors
    /// When a layer asks for what a managed policy forbids.
    pub fn want_a_search(&self) -> Result<bool, ConfigError> {
        let last = self.0.iter().rev().find(|layer| layer.config.web_search.is_some());
        let Some(asks) = last.filter(|layer| layer.config.web_search == Some(true)) else { return Ok(false) };
        let forbids = self.0.iter().find(|layer| {
            matches!(layer.origin, Origin::Managed(_)) && layer.config.web_search == Some(false)
        });
        if let Some(managed) = forbids {
            let problem = format!("{} does not let a command search the web", managed.origin);
            return Err(ConfigError::new(&asks.origin.to_string(), "web_search", problem));
        }
        let all = web_searches()?;
        Ok(!self.0.iter().flat_map(|layer| &layer.config.providers).any(|name| all.contains(name)))
    }

    /// Names the provider of the web search that is wanted, in the layer that asks for it: the first whose credential is stored, or where
    /// none is the first of all, which a run then misses by its name.
    ///
    /// # Errors
    /// When the embedded table is malformed, which its test rules out.
    pub fn choose_search(&mut self, stored: &[String]) -> Result<(), ConfigError> {
        let all = web_searches()?;
        let chosen = all.iter().find(|name| stored.contains(name)).or(all.first());
        let asks = self.0.iter_mut().rev().find(|layer| layer.config.web_search == Some(true));
        if let (Some(chosen), Some(layer)) = (chosen, asks) {
            layer.config.providers.push(chosen.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: &str = "web_search = true";
    const NOT: &str = "web_search = false";

    fn layers(managed: &str, texts: &[&str]) -> Layers {
        let mut layers = Layers::default();
        layers.push(Origin::Managed("managed.toml".into()), toml::from_str(managed).unwrap());
        for text in texts {
            layers.push(Origin::Named("file".into()), toml::from_str(text).unwrap());
        }
        layers
    }

    fn chosen(texts: &[&str], stored: &[&str]) -> Vec<String> {
        let mut layers = layers("", texts);
        if layers.want_a_search().unwrap() {
            let stored: Vec<String> = stored.iter().map(|id| (*id).to_owned()).collect();
            layers.choose_search(&stored).unwrap();
        }
        layers.compile().unwrap().policy.providers().map(|it| it.id().to_string()).collect()
    }

    #[test]
    fn the_first_that_has_a_credential_is_taken() {
        assert_eq!(chosen(&[ASKED], &["brave", "exa", "tavily"]), ["tavily"]);
        assert_eq!(chosen(&[ASKED], &["brave", "exa", "github"]), ["exa"]);
        assert_eq!(chosen(&[ASKED], &["brave"]), ["brave"]);
        assert_eq!(chosen(&[ASKED], &[]), ["tavily"]);
    }

    #[test]
    fn one_that_is_named_is_taken_and_no_other() {
        assert_eq!(chosen(&[ASKED, "providers = [\"brave\"]"], &["tavily"]), ["brave"]);
        assert_eq!(chosen(&["providers = [\"exa\"]", ASKED], &["tavily"]), ["exa"]);
    }

    #[test]
    fn the_last_layer_that_speaks_of_it_is_heard() {
        assert_eq!(chosen(&[ASKED, NOT], &["tavily"]), [""; 0]);
        assert_eq!(chosen(&[NOT, ASKED], &["exa"]), ["exa"]);
        assert_eq!(chosen(&["timeout = \"1m\""], &["tavily"]), [""; 0]);
    }

    #[test]
    fn a_managed_policy_has_the_last_word_against_it() {
        let refused = layers(NOT, &[ASKED]).want_a_search().unwrap_err();
        assert_eq!(refused.problem, "managed.toml does not let a command search the web");
        assert!(layers(ASKED, &[]).want_a_search().unwrap());
        assert!(!layers(ASKED, &[NOT]).want_a_search().unwrap());
    }
}
